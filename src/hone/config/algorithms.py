"""The published algorithms, as the keys in which each differs from hone's defaults. `docs/algorithms.md` compares them.

hone's own defaults: reward minus group mean, without a scale; PPO's clip at 0.8 and 1.28; each token counts the same;
groups without a signal count nothing; no KL.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

Algorithm = Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "maxrl", "reinforce++", "prime"]

_GROUP_STD = {"orchestrator.advantage.baseline": "group", "orchestrator.advantage.scale": "group_std"}
_GROUP_MEAN = {"orchestrator.advantage.baseline": "group", "orchestrator.advantage.scale": "none"}


def _loss(kind: str, aggregation: str, counts_filtered: bool, **more: Any) -> dict[str, Any]:
    keys = {"type": kind, "aggregation": aggregation, "count_filtered": counts_filtered, **more}
    return {f"trainer.loss.{name}": value for name, value in keys.items()}


_OWN: dict[str, dict[str, Any]] = {
    # arXiv:2402.03300, as TRL's loss_type "grpo"; the paper adds a KL term of 0.04, here trainer.loss.kl_coef
    "grpo": _GROUP_STD | _loss("clip", "sequence", True, eps_low=0.2, eps_high=0.2),
    # arXiv:2503.20783
    "dr_grpo": _GROUP_MEAN | _loss("clip", "constant", True, eps_low=0.2, eps_high=0.2),
    # arXiv:2503.14476: the loss is TRL's "dapo", which counts filtered groups; the length penalty is the paper's
    "dapo": _GROUP_STD
    | _loss("clip", "token", True, eps_low=0.2, eps_high=0.28)
    | {"orchestrator.truncated": "penalize"},
    # arXiv:2507.18071; its range is narrower than what rounding in bf16 makes of a ratio to the sampler
    "gspo": _GROUP_STD | _loss("gspo", "sequence", True, eps_low=3e-4, eps_high=4e-4, old_policy="trainer"),
    # arXiv:2506.13585
    "cispo": _GROUP_STD | _loss("cispo", "token", True, eps_high=5.0),
    # arXiv:2402.14740
    "rloo": {"orchestrator.advantage.baseline": "leave_one_out", "orchestrator.advantage.scale": "none"}
    | _loss("reinforce", "constant", True),
    # arXiv:2602.02710
    "maxrl": {"orchestrator.advantage.baseline": "group", "orchestrator.advantage.scale": "group_mean"}
    | _loss("clip", "token", False, eps_low=0.2, eps_high=0.28),
    # arXiv:2501.03262
    "reinforce++": {"orchestrator.advantage.baseline": "batch", "orchestrator.advantage.scale": "batch_std"}
    | _loss("clip", "token", True, eps_low=0.2, eps_high=0.2, kl_estimator="k1", kl_in="reward"),
    # prime-rl's default
    "prime": _GROUP_MEAN | _loss("dppo", "token", False, eps_low=0.2, eps_high=0.2, ratio_penalty=1e-3),
}
_DEFAULTS: dict[str, Any] = {
    "orchestrator.truncated": "keep",
    "trainer.loss.eps_low": None,
    "trainer.loss.eps_high": None,
    "trainer.loss.old_policy": "sampler",
    "trainer.loss.kl_estimator": "k3",
    "trainer.loss.kl_in": "loss",
    "trainer.loss.ratio_penalty": 1e-3,
}
"""Of the keys that only some set: all set them, so that one algorithm after another leaves nothing of the first."""
ALGORITHMS = {name: _DEFAULTS | keys for name, keys in _OWN.items()}
assert tuple(ALGORITHMS) == get_args(Algorithm) and len({frozenset(keys) for keys in ALGORITHMS.values()}) == 1
