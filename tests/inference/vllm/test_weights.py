"""Asking for an update over HTTP: what is said where nothing answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from hone.errors import UserError
from hone.inference.vllm import update_weights
from hone.inference.vllm.server import free_port


def test_a_server_that_is_not_there_is_named() -> None:
    port = free_port("127.0.0.1")
    with pytest.raises(UserError, match=rf"the vLLM server at http://127.0.0.1:{port} was lost \(.*refused"):
        update_weights(f"http://127.0.0.1:{port}/v1", Path("v1"), 1)
