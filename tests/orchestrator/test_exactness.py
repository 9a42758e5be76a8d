"""Why another run of the same config may sample other tokens, as its run.json has it."""

from __future__ import annotations

import pytest

from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.orchestrator.exactness import inexact_sampling

INVARIANT = "--inference.batch-invariant"


@pytest.mark.parametrize(
    ("flags", "causes"),
    [
        ([INVARIANT], []),
        ([], ["a server without inference.batch_invariant"]),
        ([INVARIANT, "--orchestrator.max-async-level", "2"], ["whichever weights are there, up to 2 versions old"]),
        (["--orchestrator.client.base-url", "http://localhost:8000/v1"], ["the server at http://localhost:8000/v1"]),
        (["--inference.backend", "vllm"], ["vLLM"]),
    ],
)
def test_what_makes_sampling_inexact(flags: list[str], causes: list[str]) -> None:
    config = parse(RLConfig, ["--mode", "split", "--display", "none", *flags], "hone rl")
    assert inexact_sampling(config) == [f"completions are sampled by {cause}" for cause in causes]
