"""What `rl` does before step 0: runs that must not start leave no trace, sound ones are as they would be without."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from made import SAYS, rl

from hone.config.parse import from_settings
from hone.config.rl import RLConfig
from hone.environments.data import given_rows
from hone.environments.functions import given_task
from hone.environments.loading import load_environment
from hone.extensions.agents.rewards import AgentLimits
from hone.extensions.agents.task import AgentTask
from hone.extensions.audit.preflight import Audit
from hone.runs.outputs import Lock

pytestmark = pytest.mark.audit


@pytest.fixture
def task(tmp_path, monkeypatch) -> Path:
    file = tmp_path / "says.py"
    file.write_text(SAYS.replace("SECONDS", "0"))
    monkeypatch.chdir(tmp_path)
    return file


def test_a_run_is_the_same_with_its_audit_and_without(task, tiny_model_dir):
    """The data is read once."""
    assert rl(tiny_model_dir) == 0
    assert Path("reads.txt").read_text().count("read") == 1
    assert rl(tiny_model_dir, "--no-audit", "--output-dir", "bare") == 0
    for name in ("metrics.jsonl", "hashes.jsonl", "rollouts/step_000000.parquet"):
        assert Path("outputs", name).read_bytes() == Path("bare", name).read_bytes()
    assert json.loads(Path("outputs/audit.json").read_text())["verdict"] != "skipped"


@pytest.mark.parametrize("edited", [False, True])
def test_a_resume_is_audited_if_it_has_another_task(task, tiny_model_dir, capsys, edited):
    """A run without a checkpoint begins anew, with whatever task is named then."""
    assert rl(tiny_model_dir) == 0
    first = Path("outputs/audit.json").read_bytes()
    if edited:
        task.write_text(task.read_text().replace("broken: bool = False", "broken: bool = True"))
        for name in ("says", "hone_environment_says"):
            sys.modules.pop(name, None)
    args = ("--allow-drift",) if edited else ("--orchestrator.env.args", '{"broken": true}')
    other = ("--max-steps", "2", *args, "--resume")
    assert rl(tiny_model_dir, *other) == 2
    text = capsys.readouterr().err
    assert "the reward of says fails its audit: reference: 2 of 2 references" in text
    assert "See it with: hone audit says" + ("" if edited else " -a '{\"broken\": true}'") in text
    assert Path("outputs/audit.json").read_bytes() == first and not Path("outputs/superseded").exists()
    assert rl(tiny_model_dir, *other, "--no-audit") == 0
    assert json.loads(Path("outputs/audit.json").read_text())["verdict"] == "skipped"


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("--output-dir foreign", "foreign holds files that are not a run of hone (mine.txt)"),
        ("--output-dir held", "this program is writing a run in held already"),
        ("--resume.dir foreign", "--resume.dir foreign is not a run of hone: it has no run.json"),
        ("--teacher.base-url http://127.0.0.1:9/v1 --teacher.max-retries 0", "start the teacher there with"),
    ],
)
def test_what_is_seen_at_once_is_refused_before_the_audit(task, tiny_model_dir, capsys, flags, problem):
    for name in ("foreign", "held"):
        Path(name).mkdir()
    Path("foreign/mine.txt").touch()
    lock = Lock(Path("held"))
    assert rl(tiny_model_dir, "--orchestrator.env.args", '{"broken": true}', *flags.split()) == 2
    lock.release()
    assert problem in capsys.readouterr().err and not Path("outputs").exists()


def test_in_a_mix_only_the_agent_is_not_audited(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = given_rows([{"prompt": "a"}], "dataset")
    envs = {"one": AgentTask(None, "true", AgentLimits(), rows, rows), "two": load_environment("reverse-text")}
    mix = [{"id": "functions", "name": "one", "args": {"agent_command": "true"}}, {"id": "reverse-text", "name": "two"}]
    config = from_settings(RLConfig, None, {"orchestrator.envs": mix})
    names = []
    monkeypatch.setattr(Audit, "_audit", lambda self, _, one, env: names.append(env.id) or {"verdict": "pass"})
    audit = Audit()
    audit.check(SimpleNamespace(config=config, envs=envs))
    assert names == ["reverse-text"] and audit._record == {"verdict": "pass"}
    assert audit._lines == ["The agent was not audited: a program rewards its own rollouts."]


def test_a_reward_of_sampled_tokens_is_not_audited() -> None:
    def by_ids(completion_ids, **columns):
        return [0.0 for _ in completion_ids]

    env = given_task(Path("out"), {}, [{"prompt": f"{i}?"} for i in range(4)], None, [by_ids]).load()
    audit, why = Audit(), "by_ids takes completion_ids, and the texts of an audit have none"
    audit.check(SimpleNamespace(config=RLConfig(), envs={"": env}))
    assert audit._record == {"verdict": "skipped", "why": why}
    assert audit._lines == [f"The task was not audited: {why}."]
