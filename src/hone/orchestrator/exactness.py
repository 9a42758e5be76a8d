"""What is exact about a run in mode split, in words: which examples it drew, which tokens were sampled, how it trained.

In one process all three are functions of config and seed. With a process for each role, a server may have begun one
batch or another when a request comes, weights may arrive between any two tokens, and sums over ranks round otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hone.config.shared import Precision

if TYPE_CHECKING:
    from hone.config.rl import RLConfig
    from hone.orchestrator.remote import Server
    from hone.runs.writer import RunWriter

SAMPLED_BY = "completions are sampled by "
"""Begins the cause of inexactness of a run that sampled from a server: what it recorded can be trained on all the same.
"""
TOLERANCE: dict[Precision, float] = {"fp32": 1e-5, "bf16_linear": 1e-3, "bf16": 1e-3}
"""How far the loss of several ranks may be from that of one process on the same batches, relative to its terms."""


def exactness(config: RLConfig, server: Server | None, ranks: int) -> dict[str, str]:
    """`examples`, `tokens`, `training`: for run.json and `hone runs show`.

    `server` is the one that samples, `ranks` the trainer's processes; `deterministic` of the config is resolved.
    """
    return {
        "examples": _examples(config, ranks),
        "tokens": _tokens(config, server, ranks),
        "training": _training(config, ranks),
    }


def note_exactness(run: RunWriter, config: RLConfig, server: Server, ranks: int) -> None:
    """Puts it into run.json, with why another run of the config may differ from the step on that `run` begins with."""
    run.note(exactness=exactness(config, server, ranks))
    for cause in inexact_sampling(config, server):
        run.mark_inexact(run.start_step, cause)


def inexact_sampling(config: RLConfig, server: Server | None = None) -> list[str]:
    """Why another run of the config may sample other tokens, as causes for `RunWriter.mark_inexact`."""
    if config.orchestrator.client.base_url is not None:
        who = [f"the server at {config.orchestrator.client.base_url}"]
    elif (server.backend if server else config.inference.backend) == "vllm":
        who = ["vLLM"]
    elif config.mode == "split" and not config.inference.batch_invariant:
        who = ["a server without inference.batch_invariant"]
    else:
        who = []
    if lag := config.orchestrator.max_async_level:
        who.append(f"whichever weights are there, up to {_versions(lag)} old")
    return [SAMPLED_BY + one for one in who]


def _examples(config: RLConfig, ranks: int) -> str:
    if not config.orchestrator.curriculum.measures:
        return "exact: their order follows from the seed alone"
    if inexact_sampling(config) or ranks > 1:
        return "not exact: the curriculum goes by what was solved, and so by the tokens"
    return "exact: their order follows from the seed, and from what was solved"


def _tokens(config: RLConfig, server: Server | None, ranks: int) -> str:
    vllm = (server.backend if server else config.inference.backend) == "vllm"
    reasons = []
    if config.orchestrator.client.base_url is not None:
        kind = "vLLM" if vllm else "hone's server"
        reasons.append(f"{kind} was started by others, with settings of its own")
    elif vllm:
        reasons.append("vLLM's rounding depends on what it samples at once")
    elif not config.inference.batch_invariant:
        reasons.append(
            "without inference.batch_invariant a token's rounding depends on what is sampled beside it, and that on "
            "timing"
        )
    if lag := config.orchestrator.max_async_level:
        reasons.append(
            f"which version samples a token depends on timing (max_async_level = {lag}; each token's is recorded)"
        )
    if not config.deterministic:
        reasons.append("kernels are not pinned (deterministic = false)")
    if reasons:
        return f"not exact: {'; '.join(reasons)}"
    how = "own engine with batch_invariant, in lock-step"
    if ranks > 1:
        return f"exact: {how}; the same on {ranks} ranks, while on another number the weights round otherwise"
    return f"exact: {how}; those of a run in one process"


def _training(config: RLConfig, ranks: int) -> str:
    if not config.deterministic:
        return "not exact: kernels are not pinned (deterministic = false)"
    if ranks > 1:
        return (
            f"exact on {ranks} ranks, given the same batches; a replay in one process has each loss within "
            f"{TOLERANCE[config.precision]:g} of the recorded one"
        )
    return "exact, given the same batches: a replay of the rollouts gives the same weights"


def _versions(count: int) -> str:
    return f"{count} version{'s' if count > 1 else ''}"
