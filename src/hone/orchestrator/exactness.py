"""Why another run of the same config may sample other tokens, and how far the training of several ranks may be off.

In one process, config and seed decide all. With a process for each role, a server may have begun one batch or another
when a request comes, weights may arrive between any two tokens, and sums over ranks round otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hone.config.shared import Precision

if TYPE_CHECKING:
    from hone.config.rl import RLConfig

SAMPLED_BY = "completions are sampled by "
"""Begins the cause of inexactness of a run that sampled from a server: its records can be trained on all the same."""
TOLERANCE: dict[Precision, float] = {"fp32": 1e-5, "bf16_linear": 1e-3, "bf16": 1e-3}
"""Largest distance of the loss of several ranks from that of one process on the same batches, relative to its terms."""


def inexact_sampling(config: RLConfig) -> list[str]:
    """Return why another run of the config may sample other tokens, as causes for `RunWriter.mark_inexact`."""
    causes = []
    if (url := config.orchestrator.client.base_url) is not None:
        causes.append(f"the server at {url}")
    elif config.inference.backend == "vllm":
        causes.append("vLLM")
    elif config.mode == "split" and not config.inference.batch_invariant:
        causes.append("a server without inference.batch_invariant")
    if lag := config.orchestrator.max_async_level:
        causes.append(f"whichever weights are there, up to {lag} version{'s' if lag > 1 else ''} old")
    return [SAMPLED_BY + cause for cause in causes]
