"""`hone.Judge` and `hone.HTTPReward`; `--teacher` of `hone rl`."""

from hone.extension import Column, Fields

EXPORTS = dict.fromkeys(("HTTPReward", "Judge"), "hone.extensions.services.services")
KEYS = {"rl.teacher": Fields("RLKeys", __name__)}
COLUMNS = {"teacher_logprobs": Column("teacher", "a teacher", "asking the teacher", "teacher", __name__)}
