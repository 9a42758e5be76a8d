"""A vLLM that cannot start says why in one sentence, and leaves nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from processes import children

from hone.errors import UserError
from hone.extensions.vllm.server import VllmServer

pytestmark = pytest.mark.vllm


def test_the_cause_is_named_and_the_log(tmp_path: Path, tiny_model_dir: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_text("ValueError: of an earlier start\n")
    text: list[str] = []
    before = children(os.getpid())
    server = VllmServer(tiny_model_dir, log=log, max_model_len=99999, kv_gib=1 / 16, progress=text.append)
    with pytest.raises(UserError) as error, server:
        pytest.fail("it started")
    words = str(error.value)
    assert words.startswith(
        "vLLM ended with exit code 1 before it served: User-specified max_model_len (99999) is greater"
    )
    assert words.endswith(f"(log: {log})") and "\n" not in words
    assert text[0] == f"Starting vLLM 0.32.0 (log: {log}) ..."
    assert children(os.getpid()) <= before
