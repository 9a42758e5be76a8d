"""Runs whose rollouts a program makes, from `hone.rl` and the command line to `replay`."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import tampering
from real_server import serving

import hone
from hone.cli import main
from hone.errors import UserError
from hone.runs import Run
from hone.trainer.sft_data import sampled_rows

DOCS = Path(__file__).parents[3] / "docs" / "agents.md"
ROWS = [{"prompt": f"{i} + 1", "answer": str(i + 1)} for i in range(20)]
AGENT = """
async def agent(client, example):
    first = (await client.chat.completions.create(model="m", messages=example.prompt)).choices[0].message
    messages = [*example.prompt, first.model_dump(exclude_none=True), {"role": "user", "content": "More"}]
    second = (await client.chat.completions.create(model="m", messages=messages)).choices[0].message.content
    other = [{"role": "user", "content": "Other"}]
    third = (await client.chat.completions.create(model="m", messages=other)).choices[0].message.content
    if example.answer == "1":
        raise ValueError("no")
    return {"letters": sum(c.isalpha() for c in first.content + third) / 10, "long": len(second) / 100}
"""
SETTINGS: dict[str, Any] = {
    "max_steps": 3,
    "seq_len": 160,
    "display": "none",
    "report": False,
    "orchestrator.batch_size": 8,
    "orchestrator.rollouts_per_example": 4,
    "orchestrator.sampling.max_tokens": 6,
    "orchestrator.grading.max_failed": 1.0,
    "trainer.optim.lr": 1e-3,
    "inference.batch_invariant": True,
    "ckpt.interval": 1,
}


@pytest.fixture
def here(here: Path) -> Path:
    sys.path.insert(0, str(here))
    (here / "my_agent.py").write_text(AGENT)
    (here / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return here


def contents(out: Path) -> dict[str, bytes]:
    files = [out / "metrics.jsonl", out / "hashes.jsonl", *out.glob("rollouts/*"), *out.glob("weights/*/*.safetensors")]
    return {str(file.relative_to(out)): file.read_bytes() for file in files}


def test_a_deterministic_agent_gives_equal_bytes_and_is_replayed(
    here: Path, tiny_model_dir: Path, capsys: pytest.CaptureFixture
) -> None:
    settings = SETTINGS | {"model": str(tiny_model_dir)}
    from my_agent import agent  # type: ignore[import-not-found]

    run = hone.rl(agent=agent, dataset="rows.jsonl", output_dir="one", **settings)
    flags = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    assert main(["rl", *flags, "--agent", "my_agent:agent", "--data", "rows.jsonl", "--output-dir", "two"]) == 0
    assert len(contents(Path("one"))) > 5 and contents(Path("one")) == contents(Path("two"))

    assert run.info["exact"] is False and "a program makes the rollouts" in run.info["inexact"][0]["cause"]
    rows = [row for step in range(3) for row in run.rollouts(step).to_pylist()]
    for row in rows:
        (branch,) = json.loads(row["branches"])
        assert any(branch["sampled_mask"]) and branch["messages"][0]["content"] == "Other"
        assert row["outcome"] in ("correct", "wrong") if row["answer"] != "1" else row["outcome"] == "grader_error"
        if row["reward"] is not None:
            assert row["reward"] == pytest.approx(sum(dict(row["components"]).values()))
            assert set(dict(row["components"])) == {"letters", "long"}
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    trained = [(line["trajectories/mean"], line["turns/mean"]) for line in lines if "lr" in line]
    assert trained == [(2, 2)] * 3
    assert main(["replay", "one"]) == 0
    with pytest.raises(UserError, match="several segments"):
        sampled_rows(run, 0.0, "")
    capsys.readouterr()
    assert main(["regrade", "one"]) == 2
    assert "nothing else can grade them" in capsys.readouterr().err
    assert main(["verify", "one", "--trust-local-task", "--steps", "3"]) == 0
    text = capsys.readouterr().out
    assert "a program made the rollouts of this run, and is not run again" in text
    assert "3 steps came out equal from their recorded completions and rewards" in text

    def pays_more(rows: list[dict[str, Any]]) -> None:
        row = next(row for row in rows if row["reward"] is not None)
        row.update(reward=row["reward"] + 1, components=[("letters", 1.0), ("long", row["reward"])])

    shutil.rmtree("one/checkpoints")  # they have the hashes, too
    tampering.edit_rollouts(Path("one"), 1, pays_more, fit_hashes=True)
    assert main(["verify", "one", "--trust-local-task", "--steps", "3"]) == 1
    text = capsys.readouterr().out
    assert "verdict       differs: " in text and "step 1" in text, text


def test_an_agent_that_only_evaluates_a_run_is_not_run_again(
    here: Path, tiny_model_dir: Path, capsys: pytest.CaptureFixture
) -> None:
    evaluated = {
        "orchestrator.eval.envs": [{"id": "functions", "args": EVALUATED}],
        "orchestrator.eval.num_examples": 2,
    }
    settings = SETTINGS | evaluated | {"max_steps": 1, "model": str(tiny_model_dir), "output_dir": "out"}
    hone.rl(**settings)
    capsys.readouterr()
    assert main(["verify", "out"]) == 2 and "my_agent:agent" in capsys.readouterr().err
    assert main(["verify", "out", "--trust-local-task"]) == 0
    text = capsys.readouterr().out
    assert "a program makes the evaluations of this run" in text and "1 step came out equal, bit for bit" in text


LIMITS: list[Any] = [({"most_calls": 3}, "give a table of max_calls"), ([64], "give a table of max_calls")]
LIMITS += [({name: value}, "it must be a") for name, value in (("max_calls", 0.5), ("max_tokens", True))]


def test_what_an_agent_does_not_go_with_is_one_sentence(here: Path) -> None:
    async def agent(client: Any, example: Any) -> float:
        return 1.0

    def plain(client: Any, example: Any) -> float:
        return 1.0

    for given, words in (
        ({"agent": agent, "reward_funcs": [plain]}, "gives the rewards itself"),
        ({"agent": plain}, "async def"),
        ({"agent": agent, "orchestrator.truncated": "penalize"}, "penalize"),
        ({"agent": "my_agent:agend"}, "did you mean agent"),
        ({"orchestrator.env.args": {"agent_command": "no-such-program"}}, "there is no program"),
        *(({"agent": agent, "orchestrator.env.args": {"agent_limits": one}}, said) for one, said in LIMITS),
    ):
        with pytest.raises(UserError, match=words):
            hone.rl(dataset=ROWS, model="hone/tiny", output_dir="no", display="none", **given)


EVALUATED = {"agent": "my_agent:agent", "eval_data": "rows.jsonl"}


def test_an_agent_is_evaluated_at_a_url(here: Path) -> None:
    """With hone's own server at it: the very calls, in the same order, and their rewards."""
    more = {"model": "hone/tiny", "num_examples": 3, "rollouts_per_example": 2, "max_tokens": 6, "seed": 1}
    calls = '"calls": [1.0] * (2 if example.answer == "2" else 3)}'
    (here / "rewards_calls.py").write_text(AGENT.replace('"long": len(second) / 100}', calls))
    with serving() as served:

        def samples(**changed: Any) -> list[Any]:
            return hone.evaluate("functions", base_url=f"{served.url}/v1", env_args=EVALUATED | changed, **more).samples

        found = samples()
        assert [str(sample.score.outcome) for sample in found[:2]] == ["grader_error"] * 2
        assert all(one.trajectory.turns == 3 and one.trajectory.completion_tokens for one in found[2:])
        assert all(set(sample.score.components) == {"letters", "long"} for sample in found[2:])
        assert [sample.score.components for sample in samples()] == [sample.score.components for sample in found]
        assert {str(one.score.outcome) for one in samples(agent_limits={"max_calls": 2})} == {"truncated"}
        wrong, right = (sample.score for sample in samples(agent="rewards_calls:agent")[3:5])
        assert str(wrong.outcome) == "grader_error" and "gave 2 rewards of calls; 3 were answered" in wrong.detail
        assert set(right.components) == {"letters"}


def test_the_code_of_the_docs_runs(here: Path) -> None:
    text = DOCS.read_text()
    script, program = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    Path("my_agent.py").write_text(script)
    Path("program.py").write_text(program)
    found = runpy.run_path("my_agent.py", run_name="__main__")
    run = Run("agent-run")
    assert run.info["status"] == "done"
    rows = run.rollouts(0).to_pylist()
    assert any(len(json.loads(row["branches"])) == 1 for row in rows if row["branches"])
    Path("problems.jsonl").write_text("".join(json.dumps(problem) + "\n" for problem in found["PROBLEMS"]))
    small = ["--max-steps", "1", "--orchestrator.batch-size", "8", "--orchestrator.rollouts-per-example", "4"]
    small += ["--orchestrator.sampling.max-tokens", "4"]
    for number, command in enumerate(re.findall(r"^rl (.*)$", text, re.MULTILINE)):
        words = shlex.split(command.replace("python program.py", f"{sys.executable} program.py"))
        assert main(["rl", *words, *small, "--output-dir", f"run{number}"]) == 0
        rewards = [row["reward"] for row in Run(f"run{number}").rollouts(0).to_pylist()]
        assert Run(f"run{number}").info["status"] == "done" and len(rewards) == 8 and None not in rewards
