"""Says what is reproducible in a run in mode split: the examples it drew, the tokens it sampled, its training.

In one process, config and seed decide all three. With a process for each role, a server may have begun one batch or
another when a request comes, weights may arrive between any two tokens, and sums over ranks round otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hone.config.shared import Precision

if TYPE_CHECKING:
    from hone.config.rl import RLConfig
    from hone.orchestrator.reach import Server

SAMPLED_BY = "completions are sampled by "
"""Begins the cause of inexactness of a run that sampled from a server: its records can be trained on all the same."""
TOLERANCE: dict[Precision, float] = {"fp32": 1e-5, "bf16_linear": 1e-3, "bf16": 1e-3}
"""Largest distance of the loss of several ranks from that of one process on the same batches, relative to its terms."""


def exactness(config: RLConfig, server: Server, ranks: int) -> dict[str, str]:
    """Describe `examples`, `tokens` and `training`, for run.json and `hone runs show`.

    `server` is the one that samples, `ranks` the trainer's processes; `deterministic` of the config is resolved.
    """
    pinned = [] if config.deterministic else ["kernels are not pinned (deterministic = false)"]
    tokens = "exact: own engine with batch_invariant, in lock-step; those of a run in one process"
    training = "exact, given the same batches: a replay of the rollouts gives the same weights"
    examples = "exact: their order follows from the seed alone"
    if ranks > 1:
        tokens = "exact: own engine with batch_invariant, in lock-step; the same on "
        tokens += f"{ranks} ranks, while on another number the weights round otherwise"
        training = f"exact on {ranks} ranks, given the same batches; a replay in one process has each loss within "
        training += f"{TOLERANCE[config.precision]:g} of the recorded one"
    if config.orchestrator.curriculum.measures:
        examples = "exact: their order follows from the seed, and from what was solved"
        if inexact_sampling(config) or ranks > 1:
            examples = "not exact: the curriculum goes by what was solved, and so by the tokens"
    if reasons := [why for _, why in _causes(config, server)] + pinned:
        tokens = f"not exact: {'; '.join(reasons)}"
    if pinned:
        training = f"not exact: {pinned[0]}"
    return {"examples": examples, "tokens": tokens, "training": training}


def inexact_sampling(config: RLConfig, server: Server | None = None) -> list[str]:
    """Return why another run of the config may sample other tokens, as causes for `RunWriter.mark_inexact`."""
    return [SAMPLED_BY + cause for cause, _ in _causes(config, server)]


def _causes(config: RLConfig, server: Server | None) -> list[tuple[str, str]]:
    """Return what samples other tokens in another run, and why it does."""
    causes = []
    vllm = (server.backend if server else config.inference.backend) == "vllm"
    if (url := config.orchestrator.client.base_url) is not None:
        kind = "vLLM" if vllm else "hone's server"
        causes.append((f"the server at {url}", f"{kind} was started by others, with settings of its own"))
    elif vllm:
        causes.append(("vLLM", "vLLM's rounding depends on what it samples at once"))
    elif config.mode == "split" and not config.inference.batch_invariant:
        why = "a token's rounding depends on what is sampled beside it, and that on timing"
        causes.append(("a server without inference.batch_invariant", f"without inference.batch_invariant {why}"))
    if lag := config.orchestrator.max_async_level:
        which = f"whichever weights are there, up to {lag} version{'s' if lag > 1 else ''} old"
        why = f"which version samples a token depends on timing (max_async_level = {lag}; each token's is recorded)"
        causes.append((which, why))
    return causes
