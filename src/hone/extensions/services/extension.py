"""`hone.Judge` and `hone.HTTPReward`; `--teacher` of `hone rl`."""

from hone.extension import Column, Fields, Function

EXPORTS = dict.fromkeys(("HTTPReward", "Judge"), "hone.extensions.services.services")
KEYS = {"rl.teacher": Fields("RLKeys", __name__)}
_FUNCTIONS = (Function(f"teacher.{name}", __name__) for name in ("connect", "advantages", "metrics"))
COLUMNS = {"teacher_logprobs": Column("teacher", "a teacher", "asking the teacher", *_FUNCTIONS)}
