"""Somebody's run names code in every way that there is; no command that opens the run executes it without the flag."""

from __future__ import annotations

import copy
import io
import json
import shutil
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from recorded import PARITY
from starlette.testclient import TestClient

from hone.cli import main
from hone.extensions.viewer.app import create_app
from hone.extensions.viewer.catalog import Catalog
from hone.extensions.viewer.site import Site

Config = dict[str, Any]
Attack = Callable[[Config], None]
MARKER = "executed"
EVIL = f"""
open({MARKER!r}, "w")

def f(*args, **kwargs):
    return args[0] * 0.5

async def agent(client, example):
    return 1.0
"""
SYSTEM = "{{ cycler.__init__.__globals__.os.system('touch " + MARKER + "') }}"


def task(env_id: str, **args: Any) -> Attack:
    return lambda config: config["orchestrator"].update(env={"id": env_id, "args": args})


def setting(path: str, value: Any) -> Attack:
    def change(config: Config) -> None:
        *parts, last = path.split(".")
        for part in parts:
            config = config.setdefault(part, {})
        config[last] = value

    return change


def several(config: Config) -> None:
    env = config["orchestrator"].pop("env")
    config["orchestrator"]["envs"] = [env | {"name": "a"}, {"id": "evil-task", "name": "b"}]
    info = json.loads(Path("run/run.json").read_text())
    info |= {"left_outs": {"a": [], "b": []}, "pools": {"a": 8, "b": 8}}
    Path("run/run.json").write_text(json.dumps(info))


FUNCTIONS = {"data": "rows.jsonl"}
REWARDS = FUNCTIONS | {"rewards": ["evil:f"]}
NAMED_CODE: dict[str, Attack] = {
    "task file": task("evil-task"),
    "task file, with an underscore": task("evil_task"),
    "task file inside the run": task("inside"),
    "wrapped task file": task("one-shot", task="evil-task"),
    "one of several tasks": several,
    "task of evaluations": setting("orchestrator.eval.envs", [{"id": "evil-task"}]),
    "reward function": task("functions", **REWARDS),
    "reward function of a file in the run": task("functions", **FUNCTIONS, rewards=["run/rewards.py:f"]),
    "wrapped reward function": task("one-shot", task="functions", args=REWARDS),
    "installed function": task("functions", **FUNCTIONS, rewards=["os:system"]),
    "agent": task("functions", **FUNCTIONS, agent="evil:agent"),
    "wrapped agent": task("one_shot", task="functions", args=FUNCTIONS | {"agent": "evil:agent"}),
    "agent command": task("functions", **FUNCTIONS, agent_command=f"touch {MARKER}"),
    "verifiers taskset": task("verifiers:evil-task"),
    "wrapped verifiers taskset": task("one_shot", task="verifiers:evil-task"),
    "loss": setting("trainer.loss.function", "evil:f"),
    "loss of a file in the run": setting("trainer.loss.function", "run/rewards.py:f"),
    "installed loss": setting("trainer.loss.function", "os:system"),
    "advantages": setting("orchestrator.advantage.function", "evil:f"),
    "code without a sandbox": task("math-python", sandbox="none"),
}
STORED = ("reward function of a file in the run", "loss of a file in the run")
DATA_ONLY: dict[str, Attack] = {
    "chat template": setting("model.chat_template", SYSTEM),
    "model folder with code": setting("model.name", "model"),
}
READ_ONLY = [
    ["diff", "run", "run"],
    ["runs", "show", "run"],
    ["runs", "list", "."],
    ["runs", "attach", "run"],
    ["runs", "ledger", "run"],
    ["runs", "predictions", "."],
    ["runs", "continue", "run"],
    ["runs", "stop", "run"],
    ["chat", "run", "--max-tokens", "2"],
    ["audit", "--template", "run/weights/step_6"],
    ["eval", "reverse-text", "-m", "run/weights/step_6", "-n", "1", "-r", "1", "-t", "2", "--no-save"],
    ["verify", "run", "--steps", "0"],
    ["report", "run", "--no-lenient", "--output", "card"],
]
EXECUTING = [
    ["verify", "run", "--steps", "1"],
    ["replay", "run"],
    ["regrade", "run"],
    ["regrade", "run", "--env.args", "{}"],
    ["regrade", "run", "--env", "reverse-text"],
    ["report", "run", "--output", "card"],
]


@pytest.fixture(scope="module")
def recorded(bench, tmp_path_factory) -> Path:
    """A finished run of one model, whose folder and working folder are a stranger's."""
    folder = tmp_path_factory.mktemp("stranger")
    shutil.copytree(bench.rl("strange"), folder / "run")
    return folder


@pytest.fixture
def stranger(recorded, bench, tmp_path, monkeypatch) -> Path:
    here = tmp_path / "here"
    shutil.copytree(recorded, here)
    shutil.copytree(bench.folder / "model", here / "model")
    evil = {"evil_task.py": EVIL + PARITY, "evil.py": EVIL, "run/rewards.py": EVIL, "run/environments/inside.py": EVIL}
    evil |= {
        "environments/parity.py": PARITY,
        "environments/inside.py": EVIL + "# other",
        "model/modeling_evil.py": EVIL,
    }
    for name, text in evil.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(text)
    (here / "rows.jsonl").write_text('{"prompt": "1 + 1", "answer": "2"}\n' * 20)
    interpreter = here / ".venv-verifiers/bin/python"
    interpreter.parent.mkdir(parents=True)
    interpreter.write_text(f"#!/bin/sh\ntouch {here / MARKER}\n")
    interpreter.chmod(0o755)
    model = json.loads((here / "model/config.json").read_text())
    auto = {"AutoConfig": "modeling_evil.f", "AutoModelForCausalLM": "modeling_evil.f"}
    (here / "model/config.json").write_text(json.dumps(model | {"auto_map": auto}))
    monkeypatch.chdir(here)
    yield here
    for name in ("evil", "evil_task", "inside", "rewards"):
        sys.modules.pop(name, None)


def named_by_run(attack: Attack) -> None:
    config = tomllib.loads(Path("run/config.toml").read_text())
    config["model"]["name"] = "model"
    before = copy.deepcopy(config)
    attack(config)
    assert config != before or attack is DATA_ONLY["model folder with code"]
    Path("run/config.toml").write_text(tomli_w.dumps(config))


def executed() -> bool:
    found = Path(MARKER).exists()
    Path(MARKER).unlink(missing_ok=True)
    return found


def hone(capsys: pytest.CaptureFixture[str], words: list[str]) -> tuple[int, str]:
    code = main(words)
    printed = capsys.readouterr()
    return code, printed.out + printed.err


@pytest.mark.parametrize("way", NAMED_CODE)
def test_what_a_strangers_run_names_is_not_executed(way, stranger, capsys):
    named_by_run(NAMED_CODE[way])
    flag = "--reward run/rewards.py:f" if way in STORED else "--trust-local-task"
    refused = [words[0] for words in EXECUTING if flag in hone(capsys, words)[1]]
    assert not executed()
    if way in STORED:
        assert flag in hone(capsys, ["verify", "run", "--steps", "1", "--trust-local-task"])[1]
        assert not executed()
    trained = "loss" in way or "advantages" in way
    assert "verify" in refused and ("replay" in refused) == trained
    if not trained and way not in ("one of several tasks", "task of evaluations"):
        assert {"regrade"} <= {*refused}


@pytest.mark.parametrize("way", NAMED_CODE | DATA_ONLY)
def test_looking_at_a_strangers_run_executes_nothing(way, stranger, capsys, monkeypatch):
    named_by_run((NAMED_CODE | DATA_ONLY)[way])
    for words in READ_ONLY + (EXECUTING if way in DATA_ONLY else []):
        monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))
        assert hone(capsys, words)[0] in (0, 1, 2, 3), words
        assert not executed(), words
    viewer = TestClient(create_app(Site(Catalog(Path()))), base_url="http://127.0.0.1:8600")
    for page in ("/", "/curves/", "/run/run/", "/run/run/card/", "/run/run/step/1/", "/run/run/sample/1/0/"):
        assert viewer.get(page).status_code == 200, page
    for page in ("/run/run/eval/3/", "/run/run/search/?q=a"):
        assert viewer.get(page).status_code == 200, page
    assert not executed()


@pytest.mark.parametrize(
    ("way", "command"),
    [
        ("task file", ["regrade", "run"]),
        ("wrapped task file", ["regrade", "run"]),
        ("reward function", ["regrade", "run"]),
        ("reward function of a file in the run", ["regrade", "run", "--reward", "run/rewards.py:f"]),
        ("loss", ["replay", "run"]),
        ("advantages", ["verify", "run", "--steps", "1"]),
        ("verifiers taskset", ["regrade", "run"]),
    ],
)
def test_with_the_flag_it_is_executed_and_another_digest_is_named(way, command, stranger, capsys):
    named_by_run(NAMED_CODE[way])
    text = hone(capsys, [*command, "--trust-local-task"])[1]
    assert executed()
    assert "verifiers" in way or "what the run was made with" in text or "that the run was made with" in text


SFT_CODE: dict[str, Attack] = {
    "task file": setting("data.env", {"id": "evil_task"}),
    "wrapped task file": setting("data.env", {"id": "one_shot", "args": {"task": "evil-task"}}),
    "reward function": setting("data.env", {"id": "functions", "args": REWARDS}),
    "verifiers taskset": setting("data.env", {"id": "verifiers:evil-task"}),
    "folder with a loading script": lambda config: config.update(data={"name": "evil_data", "seq_len": 96}),
    "name of a loading script": lambda config: config.update(data={"name": "evil_data/evil_data.py", "seq_len": 96}),
}


@pytest.mark.parametrize("way", SFT_CODE)
def test_what_a_strangers_run_of_sft_names_is_not_executed(way, stranger, sft_run, capsys):
    shutil.rmtree("run")
    shutil.copytree(sft_run, "run")
    Path("evil_data").mkdir()
    for name in ("evil_data.py", "__init__.py"):
        Path("evil_data", name).write_text(EVIL)
    Path("evil_data/rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 8)
    named_by_run(SFT_CODE[way])
    commands = [["verify", "run", "--steps", "1"], ["report", "run", "--output", "card"], ["runs", "show", "run"]]
    texts = [hone(capsys, words)[1] for words in commands]
    assert not executed()
    assert ("--trust-local-task" in texts[0]) == ("script" not in way)


def test_what_a_strangers_evaluation_names_is_not_executed(stranger, capsys):
    words = ["eval", "parity", "-m", "model", "-n", "4", "-r", "1", "-t", "2", "--output-dir", "measured"]
    assert hone(capsys, words)[0] == 0
    file = Path("measured/config.toml")
    config = tomllib.loads(file.read_text())
    for env, args in (("evil_task", {}), ("one_shot", {"task": "evil-task"}), ("functions", REWARDS)):
        file.write_text(tomli_w.dumps(config | {"env": env, "env_args": args}))
        code, text = hone(capsys, ["report", "measured", "--json"])
        assert (code, executed()) == (0, False) and "--trust-local-task" in text


def test_a_branch_of_a_strangers_run_executes_what_its_own_config_names(stranger, bench, capsys):
    named_by_run(NAMED_CODE["loss"])
    flags = ["--model.name", "model", "--orchestrator.env.id", "reverse-text", "--max-steps", "7", "--no-audit"]
    assert hone(capsys, ["rl", *flags, "--resume.dir", "run", "--output-dir", "branch"])[0] in (0, 2)
    assert not executed()


STEERING = "\x1b[2J\x9b1A\r\u202e\u2066\x07\nverdict       verified: all is well"


def steer(value: Any) -> Any:
    """The value with its texts, but for those that say what kind of file it is, steering the terminal."""
    if isinstance(value, dict):
        same = ("format", "kind", "status", "started", "ended", "sources", "time", "name")
        return {key: item if key in same else steer(item) for key, item in value.items()}
    if isinstance(value, list):
        return [steer(item) for item in value]
    return value + STEERING if isinstance(value, str) else value


def test_what_a_strangers_run_says_does_not_steer_the_terminal(stranger, capsys):
    info, events = Path("run/run.json"), Path("run/events.jsonl")
    made = steer(json.loads(info.read_text()))
    info.write_text(json.dumps(made | {"exact": False, "inexact": [{"step": 0, "cause": STEERING}]}))
    alarm = {"kind": "alarm", "step": 1, "name": STEERING, "evidence": STEERING, "advice": STEERING}
    events.write_text("".join(json.dumps(event) + "\n" for event in (alarm, {"kind": STEERING, "step": 1})))
    for task_file in ("environments/parity.py", "evil.py"):
        Path(task_file).write_text(f"raise ValueError({STEERING!r})\n" + PARITY)
    trusted = [[*words, "--trust-local-task"] for words in EXECUTING[:4]]
    for words in (*READ_ONLY[:8], *trusted, ["report", "run", "--no-lenient", "--json"]):
        text = hone(capsys, words)[1]
        assert text and all(char.isprintable() or char in "\n\t" for char in text), words
        assert not [line for line in text.splitlines() if line.startswith("verdict       verified: all")], words


def test_a_status_or_a_name_of_a_strangers_run_is_text(stranger, capsys):
    info = json.loads(Path("run/run.json").read_text()) | {"status": "{0.__class__}{x}{1:>99999999}" + STEERING}
    Path("run/run.json").write_text(json.dumps(info))
    for words in (["runs", "show", "run"], ["runs", "list", "."], ["runs", "show", "gone" + STEERING]):
        text = hone(capsys, words)[1]
        assert all(char.isprintable() or char in "\n\t" for char in text), words
        assert "gone" in text or "{0.__class__}{x}" in text, words
