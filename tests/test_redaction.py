"""The values of variables that hold keys are in nothing that hone writes or prints."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hone.cli import _fail
from hone.client import api_key, one_line
from hone.config.servers import ClientConfig
from hone.grading import GraderFailure
from hone.loops.child import Child, Log
from hone.redaction import redact
from hone.runs.display import PlainDisplay
from hone.runs.files import JsonlLog, dumps, write_json
from hone.runs.progress import Progress
from hone.runs.writer import _log_warnings
from hone.types import Outcome

SECRET = "sk-0123/abc\"'\\"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)


def test_a_key_is_replaced_by_its_name_however_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    forms = [SECRET, repr(SECRET)[1:-1], json.dumps(SECRET)[1:-1], "sk-0123%2Fabc%22%27%5C"]
    assert redact(" ".join(forms)) == " ".join(["[HF_TOKEN]"] * 4)
    monkeypatch.setenv("WANDB_API_KEY", SECRET + "longer")
    assert redact(f"{SECRET}longer {SECRET}") == "[WANDB_API_KEY] [HF_TOKEN]"
    monkeypatch.setenv("HF_TOKEN", "none")
    assert redact("none") == "none"


def test_a_variable_that_a_config_names_holds_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMED_BY_CONFIG", "abcdefgh")
    monkeypatch.setenv("NAMED_BY_FLAG", "ijklmnop")
    assert redact("abcdefgh ijklmnop") == "abcdefgh ijklmnop"
    ClientConfig(api_key_var="NAMED_BY_CONFIG")
    api_key("NAMED_BY_FLAG", "-k")
    assert redact("abcdefgh ijklmnop") == "[NAMED_BY_CONFIG] [NAMED_BY_FLAG]"


def test_a_key_of_digits_leaves_numbers_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "123456")
    record = {"tokens": 1123456, "loss": 0.123456, "texts": ["key 123456"]}
    assert json.loads(dumps(record)) == record | {"texts": ["key [OPENAI_API_KEY]"]}


def test_all_writers_take_keys_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    JsonlLog(tmp_path / "events.jsonl").append({"detail": f"x{SECRET}y"})
    write_json(tmp_path / "run.json", {"command": [SECRET]})
    handler = _log_warnings(tmp_path / "rl.log")
    logging.getLogger("some.library").warning("the token is %s", SECRET)
    logging.getLogger().removeHandler(handler)
    logging.captureWarnings(False)
    child = Child("trainer", None, [sys.executable, "-c", f"print({SECRET!r})"], os.environ, Log(tmp_path / "role.log"))
    while child.poll() is None:
        pass
    shown = io.StringIO()
    PlainDisplay(Progress("rl", 1, lambda: 0.0), shown).message(SECRET)
    _fail(f"it was {SECRET}")
    texts = [path.read_text() for path in sorted(tmp_path.iterdir())] + [shown.getvalue(), *child.lines]
    texts += [GraderFailure(Outcome.GRADER_ERROR, SECRET).detail, one_line(SECRET), capsys.readouterr().err]
    assert len(texts) == 9
    assert all("[HF_TOKEN]" in text and "0123" not in text for text in texts), texts


def test_the_traceback_of_a_command_has_no_key() -> None:
    fails = "lambda *_: {}[os.environ['HF_TOKEN']]"
    code = f"import os, sys, hone.cli as cli; cli._run = {fails}; sys.exit(cli.call('rl', [], 'rl'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and "KeyError: '[HF_TOKEN]'" in done.stderr and "0123" not in done.stderr
