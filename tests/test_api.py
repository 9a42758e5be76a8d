"""`hone.rl`, `hone.sft`, `hone.evaluate` and `hone.RL` in scripts: real runs of a tiny model."""

from __future__ import annotations

import json
import linecache
import runpy
import signal
import subprocess
import sys
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path

import pytest
import torch
from present import QUIET
from run_folders import exact_files

import hone
from hone.cli import commands, main
from hone.environments import Environment
from hone.errors import UserError
from hone.loops import evaluating
from hone.runs import Run

SETTINGS = {
    "max_steps": 3,
    "seq_len": 96,
    "display": "none",
    **QUIET,
    "orchestrator.batch_size": 8,
    "orchestrator.rollouts_per_example": 4,
    "orchestrator.sampling.max_tokens": 6,
    "orchestrator.eval.num_examples": 3,
    "trainer.optim.lr": 1e-3,
    "ckpt.interval": 1,
}
ROWS = [{"prompt": f"{i} + 1", "answer": str(i + 1), "level": i % 3} for i in range(30)]
REWARDS = """
import string

DIGITS = set(string.digits)

def text_of(completion):
    return completion[-1]["content"]

def digits(completion, answer):
    text = text_of(completion)
    return sum(c in DIGITS for c in text) / max(1, len(text))

async def short(completions, level, **columns):
    return [0.1 * level[0] if len(text) < 12 else 0.0 for text in completions]
"""


@pytest.fixture
def here(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with `rewards.py` and `problems.jsonl`, on the path as a script has it."""
    monkeypatch.delitem(sys.modules, "rewards", raising=False)
    monkeypatch.syspath_prepend(here)
    (here / "rewards.py").write_text(REWARDS)
    (here / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return here


@pytest.fixture
def settings(tiny_model_dir: Path) -> dict:
    return SETTINGS | {"model": str(tiny_model_dir)}


def script(text: str, *args: object) -> subprocess.CompletedProcess:
    """A program that is run as a file, without a guard of `__main__`."""
    Path("script.py").write_text(text)
    return subprocess.run([sys.executable, "script.py", *map(str, args)], capture_output=True, text=True, check=False)


def here_and_now(text: str, *args: object) -> None:
    """The same in this process, which has imported what takes seconds."""
    Path("script.py").write_text(text)
    linecache.checkcache("script.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["script.py", *map(str, args)])
        runpy.run_path("script.py", run_name="__main__")


def test_names_stay_what_they_are_whatever_is_imported():
    assert hone.RL.__name__ == "RL" and hone.SFT.__name__ == "SFT" and hone.Run is Run
    for command in commands().values():
        command.load(f"commands.{command.function}")
    for function, name in ((hone.rl, "rl"), (hone.sft, "sft"), (hone.evaluate, "evaluate")):
        assert callable(function) and function.__module__ == "hone.api" and function.__name__ == name
    assert set(hone.__all__) <= set(dir(hone))
    names = {"environments": ["load_environment"], "inference": ["Engine", "SamplingParams"], "model": ["load_model"]}
    names |= {"algorithms": ["advantages", "losses"]}
    for module, stable in names.items():
        assert all(hasattr(import_module(f"hone.{module}"), name) for name in stable), module
    with pytest.raises(AttributeError, match=r"has no attribute 'train': it has (HTTPReward, Judge, )?RL, Run, SFT, "):
        hone.train  # noqa: B018


@pytest.mark.needs("reproduce")
def test_functions_of_a_script_of_a_module_and_of_the_command_line_give_the_same_bytes(
    here, settings, monkeypatch, capfd
):
    flags = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    words = ["--reward", "rewards:digits", "rewards:short", "--data", "problems.jsonl", "--output-dir", "command"]
    assert main(["rl", *flags, *words]) == 0
    program = (
        f"import hone\n{REWARDS}\nrows = [{', '.join(map(repr, ROWS))}]\n"
        f"hone.rl(dataset=rows, reward_funcs=[digits, short], output_dir='live', **{settings!r})\n"
        f"import rewards\nrun = hone.rl(dataset='problems.jsonl', reward_funcs=[rewards.digits, rewards.short], "
        f"output_dir='module', **{settings!r})\n"
        "print(run.info['status'])\n"
    )
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    done = script(program)
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stderr
    expected = exact_files(here / "command")
    assert len(expected) == 2 + 3 + 3 + 2 + 2
    assert exact_files(here / "live") == expected and exact_files(here / "module") == expected

    live, module = Run("live"), Run("module")
    assert "no other one can import digits, short" in live.info["grading"] and "grading" not in module.info
    assert live.info["kept"] == ["data.jsonl", "rewards.py"] and module.info["kept"] == ["rewards.py"]
    assert [json.loads(line) for line in Path("live/data.jsonl").read_text().splitlines()] == ROWS
    assert live.config["orchestrator"]["env"] == {
        "id": "functions",
        "args": {"data": "live/data.jsonl", "rewards": ["live/rewards.py:digits", "live/rewards.py:short"]},
    }
    assert module.config["orchestrator"]["env"]["args"]["rewards"] == ["rewards:digits", "rewards:short"]
    assert live.info["exact"] and module.info["exact"]
    kept = Path("live/rewards.py").read_text()
    named = ["--reward", "live/rewards.py:digits"]
    assert main(["verify", "live", "--steps", "2", *named]) == 0  # in workers, from the file
    assert main(["regrade", "live", *named]) == main(["replay", "live"]) == 0
    for trusted in ([], ["--trust-local-task"], ["--reward", "rewards:digits"]):
        assert main(["verify", "live", "--steps", "2", *trusted]) == 2
        assert "only if you name it: read it, and pass --reward live/rewards.py:digits" in capfd.readouterr().err
    assert main(["verify", "module", "--steps", "1", "--reward", "rewards:short"]) == 0
    assert "note" not in capfd.readouterr().err
    assert main(["verify", "module", "--steps", "1", "--trust-local-task", *named]) == 0
    assert f"--reward had no effect for {here / 'live/rewards.py'}" in capfd.readouterr().err
    Path("else").mkdir()
    Path("live").rename("else/live")  # a run's files are found where it is
    named = ["--reward", "else/live/rewards.py:digits"]
    assert main(["verify", "else/live", "--steps", "2", *named]) == 0
    Path("else/live/rewards.py").write_text(kept.replace("sum(c in", "-sum(c in"))
    assert main(["verify", "else/live", "--steps", "2", *named]) == 2


def test_the_command_resumes_a_run_of_functions(here, settings):
    program = (
        f"import hone, sys\n{REWARDS}\nrows = [{', '.join(map(repr, ROWS))}]\n"
        "hone.rl(dataset=rows, reward_funcs=[digits, short], output_dir=sys.argv[1], **"
        f"{settings!r} | {{'max_steps': int(sys.argv[2])}})\n"
    )
    here_and_now(program, "whole", 3)
    here_and_now(program, "out", 2)
    assert main(["rl", "@", "out/config.toml", "--max-steps", "3", "--resume", "--display", "none"]) == 0
    assert exact_files(here / "out") == exact_files(here / "whole")
    assert "grading" not in Run("out").info
    # A fresh start would clear what it reads; elsewhere it is another run of the same bytes.
    assert main(["rl", "@", "out/config.toml", "--display", "none"]) == 2
    assert main(["rl", "@", "out/config.toml", "--display", "none", "--max-steps", "3", "--output-dir", "b"]) == 0
    assert exact_files(here / "b") == exact_files(here / "whole")


@pytest.mark.needs("reproduce")
def test_functions_that_no_command_can_import_are_said_so_and_none_goes_on_with_them(here, settings, capfd):
    stream = open("problems.jsonl")  # noqa: SIM115

    def fine(completion):
        return float(len(stream.name) + len(completion[-1]["content"])) % 2

    with stream:
        hone.rl(dataset=ROWS, reward_funcs=[fine], output_dir="out", **settings | {"display": "plain"})
    assert "rewards.py can't be imported alone (stream is a TextIOWrapper" in capfd.readouterr().out
    for argv in (
        ["rl", "@", "out/config.toml", "--max-steps", "5", "--resume"],
        ["verify", "out", "--reward", "out/rewards.py:fine"],
    ):
        assert main(argv) == 2
        assert "only the program that began the run can go on with it: stream is a" in capfd.readouterr().err
    done = script(
        f"import hone\ndef fine(completion): return 1.0\nhone.rl(dataset={ROWS!r}, reward_funcs='script:fine')", "x"
    )
    assert done.returncode == 1 and "names the script that is running: give the function itself" in done.stderr


def test_a_changed_helper_of_a_package_beside_a_script_is_another_task(here, settings):
    Path("helping").mkdir()
    Path("helping/__init__.py").touch()
    Path("helping/parts.py").write_text("def part(text):\n    return 0.5 * ('a' in text)\n")
    program = (
        "import hone, sys\nfrom helping.parts import part\n"
        "def graded(completion):\n    return part(completion[-1]['content'])\n"
        f"settings = {settings!r} | {{'max_steps': int(sys.argv[1]), 'resume': sys.argv[1] == '2'}}\n"
        f"hone.rl(dataset={ROWS!r}, reward_funcs=[graded], output_dir='out', **settings)\n"
    )
    here_and_now(program, 1)
    Path("helping/parts.py").write_text("def part(text):\n    return 0.25 * ('a' in text)\n")
    refused = script(program, 2)
    assert refused.returncode == 1 and "with another task file (" in refused.stderr
    Path("helping/parts.py").write_text("def part(text):\n    return 0.5 * ('a' in text)\n")
    assert main(["rl", "@", "out/config.toml", "--max-steps", "2", "--resume", "--display", "none"]) == 0


def test_a_branch_into_another_folder_is_the_same_task(here, settings):
    import rewards

    task = {"dataset": ROWS, "reward_funcs": [rewards.digits]}
    hone.rl(**task, **settings | {"max_steps": 2}, output_dir="out")
    run = hone.rl(**task, **settings, output_dir="branch", **{"resume.dir": "out"})
    assert run.info["parent"]["dir"] == "out" and run.info["exact"]
    flags = ["--resume.dir", "out", "--output-dir", "by-command", "--max-steps", "3", "--display", "none"]
    assert main(["rl", "@", "out/config.toml", *flags]) == 0
    assert exact_files(here / "by-command") == exact_files(here / "branch") and Run("by-command").info["exact"]
    assert Path("branch/data.jsonl").read_bytes() == Path("out/data.jsonl").read_bytes()


@pytest.mark.needs("audit")
def test_an_audit_that_fails_only_warns_here(here, settings, capfd):
    def broken(completion):
        if not completion[-1]["content"].strip():
            raise ValueError("nothing there")
        return 0.5

    task = {"dataset": ROWS, "reward_funcs": broken}
    run = hone.rl(**task, **settings | {"max_steps": 1, "display": "plain", "audit": True}, output_dir="out")
    assert "audit: fail: raises" in capfd.readouterr().out and run.info["status"] == "done"
    Path("bad.py").write_text("def broken(completion):\n    return 1 / len(completion[-1]['content'].strip())\n")
    assert main(["rl", "--reward", "bad:broken", "--data", "problems.jsonl", "--model", settings["model"]]) == 2
    assert "fails its audit: raises" in capfd.readouterr().err


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_saves_what_of_an_evaluation_has_ended_and_pressed_again_nothing(
    here, settings, interruptible, times, capsys, monkeypatch
):
    pressed, save = [], evaluating.save_results
    pressing = lambda *args: (signal.raise_signal(signal.SIGINT), save(*args))  # noqa: E731
    monkeypatch.setattr(evaluating, "save_results", pressing)  # once more, while it is saved

    def digits(completion):
        if len(pressed) < times:
            pressed.append(signal.SIGINT)
            signal.raise_signal(pressed[0])
        return 1.0

    counts = {"model": settings["model"], "num_examples": 3, "rollouts_per_example": 2, "max_tokens": 6}
    with pytest.raises(KeyboardInterrupt):
        hone.evaluate(dataset=ROWS, reward_funcs=[digits], output_dir="out/own", **counts)
    if times == 1:
        assert capsys.readouterr().err == "Stopped by Ctrl-C: 6 of 6 completions are saved in out/own.\n"
        assert Run("out/own").info["status"] == "stopped" and Path("out/own/rewards.py").exists()
        hone.evaluate(dataset=ROWS, reward_funcs=[digits], output_dir="out/own", **counts)
        pressed.clear()
        with pytest.raises(KeyboardInterrupt):  # a part does not replace a whole one
            hone.evaluate(dataset=ROWS, reward_funcs=[digits], output_dir="out/own", **counts)
        assert Run("out/own").info["status"] == "done" and "are saved in /" in capsys.readouterr().err
    else:
        assert capsys.readouterr().err == "Stopped by Ctrl-C before any result: nothing is saved.\n"
        assert not Path("out").exists()


def test_ctrl_c_saves_the_run_and_ends_the_program(here, settings, interruptible):
    Path("stop").touch()

    def digits(completion):
        if Path("stop").exists() and Path("out/rollouts").exists():
            Path("stop").unlink()
            signal.raise_signal(signal.SIGINT)
        return len(completion[-1]["content"]) % 3 / 2

    with pytest.raises(KeyboardInterrupt):
        hone.rl(dataset=ROWS, reward_funcs=[digits], output_dir="out", **settings)
    run = Run("out")
    assert run.info["status"] == "stopped" and run.checkpoints.steps()
    run = hone.rl(dataset=ROWS, reward_funcs=[digits], output_dir="out", resume=True, **settings)
    assert run.info["status"] == "done"
    cause = "reward functions run in this process, where the order of sets is random: start it with PYTHONHASHSEED=0"
    assert [entry["cause"] for entry in run.info["inexact"]] == [cause]


@pytest.mark.needs("reproduce")
def test_files_of_the_user_are_not_overwritten(here, settings):
    import rewards

    flags = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    words = ["--reward", "rewards:digits", "--data", "problems.jsonl", "--output-dir", "out", "--max-steps", "1"]
    assert main(["rl", *flags, *words]) == 0
    Path("out/data.jsonl").write_text("mine")
    for more in ({}, {"resume": True}):
        with pytest.raises(UserError, match=r"out/data\.jsonl is not a file of a run"):
            hone.rl(dataset=ROWS, reward_funcs=[rewards.digits], output_dir="out", **settings | more)
    assert Path("out/data.jsonl").read_text() == "mine" and not Path("out/.previous").exists()
    Path("out/data.jsonl").unlink()
    hone.rl(dataset=ROWS, reward_funcs=[rewards.digits], output_dir="out", **settings | {"max_steps": 1})
    first = Run("out").info["id"]
    hone.rl(dataset=ROWS[:20], reward_funcs=[rewards.digits], output_dir="out", **settings | {"max_steps": 1})
    earlier = Path("out/.previous") / first
    assert len((earlier / "data.jsonl").read_text().splitlines()) == 30  # moved with its run
    assert main(["verify", str(earlier), "--steps", "1", "--trust-local-task"]) == 0
    Path("evaluated").mkdir()
    Path("evaluated/rewards.py").write_text("mine")
    counts = {"model": settings["model"], "num_examples": 1, "max_tokens": 2}
    with pytest.raises(UserError, match="holds files"):
        hone.evaluate(dataset=ROWS, reward_funcs=[rewards.digits], output_dir="evaluated", **counts)
    assert Path("evaluated/rewards.py").read_text() == "mine"


def test_what_is_wrong_is_one_sentence_with_the_remedy(here, settings, monkeypatch):
    def fine(completion):
        return 1.0

    def task(**changes):
        return lambda: hone.rl(**{"dataset": ROWS, "reward_funcs": [fine], "output_dir": "out"} | settings | changes)

    class Table:
        pass

    wrong = {
        "there is no key 'max_step': did you mean max_steps?": task(max_step=4),
        "there is no key 'learning_rate': did you mean trainer.optim.lr?": task(learning_rate=4),
        "`hone eval --help all` lists all keys": lambda: hone.evaluate("reverse-text", xyzzy=1),
        "not a named function": task(reward_funcs=[lambda completion: 1.0]),
        "there is no reward function": task(reward_funcs=[], dataset=ROWS),
        "there is no data set": task(dataset=None),
        "^dataset is empty: give at least one row$": task(dataset=[]),
        "^dataset is empty": lambda: hone.sft(model=settings["model"], dataset=()),
        "dataset is a Table: give a path": task(dataset=Table()),
        "dataset is a dict: .* of one split": task(dataset={"train": ROWS}),
        "dataset, row 1: Object of type set is not JSON": task(dataset=[ROWS[0], {"prompt": {1}}]),
        "dataset, row 0: .*Out of range float": task(dataset=[{"prompt": "a", "x": float("inf")}]),
        "reward takes MODULE:FUNCTION.* pass functions as reward_funcs": task(reward=fine),
        "data takes a file.* pass rows as dataset": task(data=ROWS),
        "need as many finite weights": task(reward_weights=[1, 2]),
        "reward_weights is '12'; it must be a list": task(reward_weights="12"),
        r"reward_weights is \['a'\]; it must be a list": task(reward_weights=["a"]),
        "observers must be a list of": lambda: hone.RL(
            dataset=ROWS, reward_funcs=fine, observers=[print], output_dir="out", **settings
        ),
        "correctness 'other' is not one of": task(correct="other"),
        "there is no file nowhere.py": task(reward_funcs="nowhere.py:f"),
        "there is no module 'nowhere'": task(reward_funcs="nowhere:f"),
        "has no function digit; did you mean digits": task(reward_funcs="rewards:digit"),
        "names no function: write MODULE:FUNCTION": task(reward_funcs="rewards"),
        "no column 'nosuch'": task(reward_funcs=[_asks_for_nosuch]),
        "for mode split use the command": task(mode="split"),
        "is no data set|does not exist": task(dataset="nowhere.jsonl"),
    }
    for message, action in wrong.items():
        with pytest.raises(UserError, match=message):
            action()
        assert not Path("out").exists(), message


def _asks_for_nosuch(completion, nosuch):
    return 1.0


def test_the_loop_in_ones_own_hands_takes_functions_evaluates_and_ends(here, settings):
    import rewards

    torch.set_num_threads(1)
    seen = []
    with hone.RL(dataset=ROWS, reward_funcs=[rewards.digits], output_dir="out", **settings) as rl:
        while not rl.done:
            groups = rl.sample()
            assert all(0 <= score.components["digits"] <= 1 for group in groups for score in group.scores)
            seen.append(rl.evaluate(num_examples=2).rewards.size)
            for wrong in ([], groups[:1], groups[::-1]):
                with pytest.raises(UserError, match="update takes all groups that the last sample"):
                    rl.update(wrong)
            rl.update(groups)
            if not rl.done:
                with pytest.raises(UserError, match="update takes all groups that the last sample"):
                    rl.update(groups)
        with pytest.raises(UserError, match="evaluate at least 1 example"):
            rl.evaluate(num_examples=0)
        second = hone.RL(dataset=ROWS, reward_funcs=[rewards.digits], output_dir="out", **settings)
        with pytest.raises(UserError, match="this program is writing a run in out already"), second:
            pass
        for action in (rl.sample, rl.step, lambda: rl.update(groups)):
            with pytest.raises(UserError, match="all 3 steps are taken"):
                action()
    assert seen == [2, 2, 2] and rl.version == 3 and Run("out").info["status"] == "done"
    with hone.RL(dataset=ROWS, reward_funcs=[rewards.digits], output_dir="plain", **settings) as rl:
        rl.train()
    assert exact_files(here / "plain") == exact_files(here / "out")  # evaluating has changed nothing

    with hone.RL(dataset=ROWS, reward_funcs=[rewards.digits], output_dir="out", resume=True, **settings) as rl:
        assert rl.done and rl.version == 3
        for action in (rl.step, rl.save, rl.evaluate):
            with pytest.raises(UserError, match="the run in out is finished"):
                action()
    assert exact_files(here / "plain") == exact_files(here / "out")


def test_a_run_can_be_read_and_drawn(here, settings):
    import rewards

    run = hone.rl(dataset=ROWS, reward_funcs=[rewards.digits, rewards.short], output_dir="out", **settings)
    samples, rollouts = run.samples(step=2).to_pylist(), run.rollouts(2).to_pylist()
    assert run.samples() == run.samples(step=2) and len(samples) == 8
    for sample, rollout in zip(samples, rollouts, strict=True):
        assert sample["prompt"] == json.loads(rollout["prompt"])[0]["content"] and sample["text"] == rollout["text"]
        assert sample["digits"] + sample["short"] == pytest.approx(sample["reward"])
    evaluations = run.evaluations().to_pylist()
    assert [row["step"] for row in evaluations] == [0, 3]
    lines = [json.loads(line) for line in Path("out/metrics.jsonl").read_text().splitlines()]
    name = "eval/functions/reward/mean"
    assert [row[name] for row in evaluations] == [line[name] for line in lines if name in line]

    figure = run.plot()
    assert [line.name for line in figure.data] == ["functions, held out", "reward/mean"]
    held_out, training = figure.data
    assert list(held_out.x) == [0, 3] and list(held_out.y) == [row[name] for row in evaluations]
    assert held_out.error_y.array[0] == pytest.approx(lines[0]["eval/functions/ci95/high"] - lines[0][name])
    assert list(training.y) == [line["reward/mean"] for line in lines[:3]]
    assert [line.name for line in run.plot("entropy").data] == ["entropy"]
    with pytest.raises(UserError, match="has no metric 'entrop': did you mean 'entropy'"):
        run.plot("entrop")


def test_rows_for_sft_are_kept_and_give_the_bytes_of_their_file(here, tiny_model_dir):
    rows = [{"prompt": f"{i} + 1", "completion": str(i + 1)} for i in range(20)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"model": str(tiny_model_dir), "max_steps": 3, "data.seq_len": 64, "data.batch_size": 2, "ckpt": True}
    settings |= {"display": "none"}
    run = hone.sft(dataset=rows, output_dir="out", **settings)
    by_path = hone.sft(dataset="rows.jsonl", output_dir="path", **settings)
    given, by_file = (exact_files(here / out) for out in ("out", "path"))
    del given["weights/step_3/README.md"], by_file["weights/step_3/README.md"]  # which names the data set
    assert given == by_file and len(given) == 3
    assert run.config["data"]["path"] == "out/data.jsonl" and by_path.config["data"]["path"] == "rows.jsonl"
    assert Path("out/data.jsonl").read_bytes() == Path("rows.jsonl").read_bytes()
    assert main(["sft", "@", "out/config.toml", "--max-steps", "5", "--resume"]) == 0
    rows[3]["completion"] = "five"
    with pytest.raises(UserError, match=r"another data \(.*data\.jsonl \("):
        hone.sft(dataset=rows, output_dir="out", resume=True, **settings | {"max_steps": 7})
    # The task of a file does not stand beside the rows.
    Path("sft.toml").write_text('output_dir = "toml"\nmax_steps = 1\n[data.env]\nid = "reverse-text"\n')
    run = hone.sft("sft.toml", dataset=rows, model=str(tiny_model_dir), display="none", **{"data.seq_len": 64})
    assert run.path == Path("toml") and "env" not in run.config["data"]
    with pytest.raises(UserError, match=r"did you mean data\.seq_len"):
        hone.sft(dataset=rows, seq_len=64)


def test_an_evaluation_is_that_of_the_command(here, tiny_model_dir, capfd):
    import rewards

    threads = torch.get_num_threads()
    counts = {"model": str(tiny_model_dir), "num_examples": 4, "max_tokens": 6, "seed": 3}
    result = hone.evaluate("reverse-text", **counts)
    words = f"eval reverse-text -m {tiny_model_dir} -n 4 -t 6 --seed 3 --output-dir saved"
    assert main(words.split()) == 0
    saved = [json.loads(line) for line in Path("saved/results.jsonl").read_text().splitlines()]
    assert [s.score.reward for s in result.samples] == [row["reward"] for row in saved]
    assert not Path("outputs").exists()

    own = hone.evaluate(dataset=ROWS, reward_funcs=[rewards.digits], output_dir="own", threads=2, **counts)
    assert {s.example.prompt[0]["content"] for s in own.samples} == {row["prompt"] for row in ROWS[:4]}
    assert Path("own/eval_data.jsonl").exists() and "def digits" in Path("own/rewards.py").read_text()
    assert torch.get_num_threads() == threads
    counts.pop("num_examples")
    every = hone.evaluate(dataset=ROWS, reward_funcs=rewards.digits, rollouts_per_example=1, **counts)
    assert len(every.samples) == len(ROWS)
    with pytest.raises(UserError, match="has its own data and rewards"):
        hone.evaluate("reverse-text", correct="exact", **counts)
    assert repr(own).startswith("<EvalResult digits: reward ") and "12 completions" in repr(own)


RELATIVE = """
def shortest(completions, completion_ids, answer):
    assert len(set(answer)) == 1
    lengths = [len(ids) for ids in completion_ids]
    low, high = min(lengths), max(lengths)
    return [0.5 if low == high else (high - n) / (high - low) for n in lengths]


def rank(completions, prompts):
    assert len(set(prompts)) == 1
    return [sorted(completions).index(text) for text in completions]
"""


def by_hand(lengths: list[int], texts: list[str]) -> list[float]:
    """The rewards that the functions of RELATIVE give a group, the weight of the second 0.5."""
    span = max(lengths) - min(lengths)
    first = [(max(lengths) - n) / span if span else 0.5 for n in lengths]
    return [value + 0.5 * sorted(texts).index(text) for value, text in zip(first, texts, strict=True)]


@pytest.mark.needs("reproduce")
def test_a_reward_relative_to_its_group_is_the_same_in_training_evaluation_regrade_and_verify(
    here, settings, capsys, monkeypatch
):
    Path("relative.py").write_text(RELATIVE)
    flags = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    flags += ["--reward", "relative:shortest", "relative:rank", "--data", "problems.jsonl"]
    flags += ["--orchestrator.env.args.weights", "[1.0, 0.5]", "--orchestrator.eval.rollouts-per-example", "4"]
    assert main(["rl", *flags, "--output-dir", "out"]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(Environment, "early_grading", lambda *_: nullcontext())
        assert main(["rl", *flags, "--output-dir", "late"]) == 0
    assert exact_files(here / "out") == exact_files(here / "late")
    run, groups = Run("out"), {}
    for row in (row for step in range(3) for row in run.rollouts(step).to_pylist()):
        groups.setdefault(row["draw"], []).append(row)
    assert len(groups) == 6 and len({row["reward"] for rows in groups.values() for row in rows}) > 4
    for rows in groups.values():
        lengths = [sum(row["sampled_mask"]) for row in rows]
        assert [row["reward"] for row in rows] == by_hand(lengths, [row["text"] for row in rows])
    evaluated = {}
    for row in run.eval_rows(3):
        evaluated.setdefault(row["example"], []).append(row)
    assert [len(rows) for rows in evaluated.values()] == [4] * 3
    for rows in evaluated.values():
        lengths = [row["completion_tokens"] for row in rows]
        assert [row["reward"] for row in rows] == by_hand(lengths, [row["completion"][-1]["content"] for row in rows])

    assert main(["verify", "out", "--steps", "2", "--trust-local-task"]) == 0
    capsys.readouterr()
    assert main(["regrade", "out", "--trust-local-task"]) == 0
    assert "24 of 24 have the recorded reward and outcome" in capsys.readouterr().out
    # Another grader: of the run's own, whole groups are checked.
    monkeypatch.setattr("hone.extensions.reproduce.regrade.CHECKED", 7)
    assert main(["regrade", "out", "--trust-local-task", "--env.args.weights", "[0.0, 1.0]"]) == 0
    assert "12 of 12 have the recorded reward and outcome" in capsys.readouterr().out
