"""`hone inference`: what it says, and how it begins and ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import openai
import pytest

from hone import cli
from hone.config.shared import DEFAULT_PRECISION
from hone.processes import free_port


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert cli.main(["inference", "--port", str(port)]) == 2
    error = capsys.readouterr().err
    assert f"port {port} is in use" in error and error.endswith(f"--port {port + 1}\n") and error.count("\n") == 1


@pytest.mark.parametrize("host", ["0.0.0.0", "", *(["::"] if socket.has_dualstack_ipv6() else [])])
@pytest.mark.parametrize("backend", ["hone", "vllm"])
def test_other_machines_need_a_key(host: str, backend: str, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """It is said before a model, or vLLM, is looked for: neither is there."""
    argv = ["inference", "--host", host, "--port", str(free_port()), "--backend", backend]
    argv += ["--model.name", "./nowhere", "--vllm-python", "./nowhere"]
    assert cli.main(argv) == 2
    error = capsys.readouterr().err
    assert "--api-key-var, or leave out --host" in error and error.count("\n") == 1
    monkeypatch.setenv("KEY", "sesame")
    for more in (["--api-key-var", "KEY"], ["--host", "localhost"], ["--host", "127.0.0.2"]):
        assert cli.main([*argv, *more]) == 2
        assert "nowhere" in capsys.readouterr().err


def test_it_serves_what_it_says_until_it_is_stopped(tiny_model_dir: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "hone.cli", "inference", "--model.name", str(tiny_model_dir), "--port", str(port)]
    with (
        subprocess.Popen(
            [*command, "--api-key-var", "KEY"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "KEY": "sesame"},
        ) as server,
        ExitStack() as stack,
    ):
        stack.callback(server.kill)  # else a failure below would wait for it without end
        assert server.stdout is not None and server.stderr is not None
        lines = []
        while not lines or not lines[-1].startswith("stop"):
            lines.append(server.stdout.readline())
            assert lines[-1], server.stderr.read()
        shown = "".join(lines)
        assert f"(0.43M parameters, {DEFAULT_PRECISION}, cpu, 1 thread, 4 GiB for keys and values)" in shown
        assert "sesame" not in shown and b"sesame" not in Path(f"/proc/{server.pid}/cmdline").read_bytes()

        assert f"vf-eval reverse-text -m {tiny_model_dir} -b http://localhost:{port}/v1 -k KEY" in shown
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"http://localhost:{port}/v1", api_key="KEY", max_retries=0).models.list()
        client = openai.OpenAI(base_url=f"http://localhost:{port}/v1", api_key="sesame", max_retries=0)
        next(client.completions.create(model=str(tiny_model_dir), prompt="a", max_tokens=50, stream=True))
        server.send_signal(signal.SIGINT)
        rest, errors = server.communicate(timeout=300)
        assert (server.returncode, rest.splitlines()[-1], errors) == (0, "Stopped.", "")
