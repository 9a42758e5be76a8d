"""Every command and every Python block of the README and the docs is run, in the order of the page.

Runs are cut to two steps, and models and data from the hub are replaced by local ones of the same layout; everything
else of a command is as printed. Where a page names `weights/step_900`, the version that the short run made stands in
for it.
"""

from __future__ import annotations

import json
import re
import runpy
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path

import numpy as np
import patient
import pytest

from hone.cli import main
from hone.config.alarms import AlarmsConfig
from hone.config.rl import CurriculumConfig, PoolConfig
from hone.environments import load_environment

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Commands that other tests run: the upload in tests/commands/test_hf_upload.py; the server in
# tests/test_serving_page.py and, on vLLM, in tests/vllm; tmux in tests/split; the rest is this very test run.
# torchrun is in tests/trainer/test_ranks_page.py.
ELSEWHERE = ("hf upload", "inference", "bash .ci/run", "bash scripts/tmux.sh", ".venv/bin/pytest", "source .venv")
COMMANDS = (
    "hone",
    "sft",
    "rl",
    "torchrun",
    "vf-eval",
    "make",
    "export",
    "pytest",
    *(word.split()[0] for word in ELSEWHERE),
)


def blocks(page: Path, language: str) -> list[str]:
    return [body for tag, body in FENCE.findall(page.read_text()) if tag == language]


def shell_commands(page: Path) -> list[list[str]]:
    lines = [line for body in blocks(page, "bash") for line in body.splitlines() if line.strip()]
    return [shlex.split(line, comments=True) for line in lines]


def substitutes(argv: list[str], model: Path, data: Path) -> list[str]:
    """Flags that cut a run to two steps and keep it off the hub."""
    if argv[0] not in ("sft", "rl"):
        return []
    flags = ["--max-steps", "2", "--display", "plain"]
    if "--wandb.project" in argv:
        flags += ["--wandb.mode", "offline"]
    if "examples/reverse_text/sft.toml" in argv:
        flags += ["--model.name", str(model), "--data.name", "None", "--data.path", str(data), "--data.seq-len", "256"]
    if "examples/reverse_text/rl.toml" in argv:
        flags += ["--orchestrator.eval.num-examples", "8"]
    return flags


def stand_in(folder: Path, named: str) -> None:
    """Lets `weights/step_2` answer to the name that the page uses."""
    if (folder / "step_2").exists() and not (folder / named).exists():
        (folder / named).symlink_to("step_2")


def look(argv: list[str], *paths: str) -> int:
    """Runs `hone view` until it has answered `/` and `paths` as it should; the exit code after Ctrl-C."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [word for i, word in enumerate(argv[1:]) if "--port" not in argv[i : i + 2]]
    command = [sys.executable, "-m", "hone.cli", *words, "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            assert f"http://127.0.0.1:{port}/" in server.stdout.readline()
            for path in ("/", *paths):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as page:
                    assert "<h1>" in page.read().decode()
        finally:
            server.send_signal(signal.SIGINT)
        return server.wait(300)


def run(argv: list[str], extra: list[str]) -> int:
    if argv[:2] == ["hone", "view"] and "--static" not in argv:
        return look(argv)
    command = argv if argv[0] == "hone" else ["hone", "eval" if argv[0] == "vf-eval" else argv[0], *argv[1:]]
    return main([*command[1:], *extra])


def test_every_command_of_the_readme_runs_in_order(tmp_path, monkeypatch, tiny_model_dir, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"item {i}", "completion": f"{i:03d}"}) + "\n" for i in range(10)))
    for argv in shell_commands(ROOT / "README.md"):
        if argv[0] == "make" or " ".join(argv).startswith(ELSEWHERE):
            continue
        stand_in(tmp_path / "outputs/tiny-sft/weights", "step_900")
        stand_in(tmp_path / "outputs/tiny-rl/weights", "step_150")
        stand_in(tmp_path / "outputs/weights", "step_100")
        code = 1 if argv[:2] == ["hone", "diff"] else 0  # of two seeds
        assert run(argv, substitutes(argv, tiny_model_dir, data)) == code, (argv, capfd.readouterr().err)
    program, by_hand, first, task = blocks(ROOT / "README.md", "python")
    problems(tmp_path)
    (tmp_path / "script.py").write_text(cut_short(program, tiny_model_dir) + cut_short(by_hand, tiny_model_dir))
    names = runpy.run_path("script.py", run_name="__main__")
    assert names["run"].info["status"] == "done" and names["rl"].version == 2
    capfd.readouterr()
    exec(compile(first, "README.md", "exec"), {})
    assert "1.0 correct {'similarity': 1.0, 'exact': 1.0}" in capfd.readouterr().out
    (tmp_path / "first_letter.py").write_text(task)
    runpy.run_path("first_letter.py", run_name="__main__")
    assert capfd.readouterr().out == "correct\n"
    short = ["--orchestrator.batch-size", "8", "--orchestrator.rollouts-per-example", "4", "--seq-len", "128"]
    short += ["--model.name", str(tiny_model_dir), "--output-dir", str(tmp_path / "letters")]
    assert run(["rl", "--orchestrator.env.id", "first-letter", *short], ["--max-steps", "1"]) == 0


def problems(folder: Path) -> None:
    """The files that the pages on Python name, and what their script imports."""
    rows = [{"prompt": f"{i} + 1", "answer": str(i + 1)} for i in range(20)]
    (folder / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rewards.py").write_text(
        "def exact(completion, answer):\n    return float(completion[-1]['content'].strip() == answer)\n"
    )


def cut_short(body: str, model: Path) -> str:
    """A program of two steps, on a local model and with few completions; nothing else of it changes."""
    small = "{'seq_len': 64, 'orchestrator.batch_size': 8, 'orchestrator.rollouts_per_example': 4, 'ckpt': True, "
    small += "'orchestrator.sampling.max_tokens': 6, 'orchestrator.eval.num_examples': 2}"
    body = re.sub(r"max_steps=\d+", f"max_steps=2, **{small}" if "hone.rl(" in body else "max_steps=2", body)
    by_hand = f"seed=1, max_steps=2, **{small} | {{'model': {str(model)!r}}}) as rl"
    changes = {
        "Qwen/Qwen3-0.6B": str(model),
        "step=99": "step=1",
        "rollouts(99)": "rollouts(1)",
        "num_examples=50": "num_examples=2, max_tokens=6",
        "num_examples=64": "num_examples=2",
        "seed=1) as rl": by_hand,
        "rl.version % 50": "rl.version % 2",
        "step_100": "step_2",
        "step_900": "step_2",
    }
    for long, short in changes.items():
        body = body.replace(long, short)
    return body


def test_every_line_on_python_runs_in_order(tmp_path, monkeypatch, tiny_model_dir, capfd):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    problems(tmp_path)
    short = ["--max-steps", "2", "--model.name", str(tiny_model_dir)]
    assert run(["sft", "@", "examples/reverse_text/tiny_sft.toml"], short) == 0
    program = [cut_short(body, tiny_model_dir) for body in blocks(ROOT / "docs" / "python.md", "python")]
    (tmp_path / "script.py").write_text("\n".join(program))
    names = runpy.run_path("script.py", run_name="__main__")
    assert names["rl"].version == 2 and "\n2 " in capfd.readouterr().out
    kept = runpy.run_path("outputs/two/rewards.py")
    assert kept["short"](["text"], [2]) == [0.1] and Path("outputs/two/data.jsonl").exists()
    (argv,) = shell_commands(ROOT / "docs" / "python.md")
    few = ["--orchestrator.batch-size", "8", "--orchestrator.rollouts-per-example", "4", "--seq-len", "64"]
    argv = [str(tiny_model_dir) if word == "Qwen/Qwen3-0.6B" else word for word in argv]
    assert run(argv, [*few, "--max-steps", "2", "--orchestrator.sampling.max-tokens", "6"]) == 0
    assert Path("outputs/by-flags/weights/step_2").is_dir()


def test_every_command_on_reproducibility_runs_in_order(tmp_path, monkeypatch, tiny_model_dir, capfd):
    """The model is an untrained one, and the steps are fewer: 4 for 150, a checkpoint at each, so 2 for 20."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    said = {}
    for argv in shell_commands(ROOT / "docs" / "reproducibility.md"):
        short = {"20": "2", "10": "1"}
        argv = [short.get(word, word) if argv[i - 1] in ("--resume.step", "--ckpt.interval") else word
                for i, word in enumerate(argv)]  # fmt: skip
        few = ["--max-steps", "4", "--display", "plain", "--model.name", str(tiny_model_dir)]
        assert run(argv, few if argv[0] in ("sft", "rl") else []) == 0, (argv, capfd.readouterr().err)
        said[" ".join(argv[:3])] = capfd.readouterr().out
    assert [path.name for path in sorted(Path("outputs/a/weights").iterdir())] == [
        "step_1",
        "step_2",
        "step_3",
        "step_4",
    ]
    assert "equal" in said["hone replay outputs/a"] and "verified" in said["hone verify outputs/a"]
    assert "equal" in said["hone diff outputs/a"] and "outputs/c" in said["hone runs list"]
    assert json.loads(Path("outputs/b/run.json").read_text())["parent"]["step"] == 2


def test_every_command_on_planning_runs_and_prints_what_the_page_says(monkeypatch, capfd):
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / "plan.md").read_text()
    said = ""
    for argv in shell_commands(ROOT / "docs" / "plan.md"):
        short = ["--on", "cpu"] if "--calibrate" in argv else []  # measured in tests/planning/test_calibration.py
        argv = [word for word in argv if word != "--calibrate"]
        assert run(argv, short) == (1 if "48gb" in argv else 0), (argv, capfd.readouterr().err)
        said += capfd.readouterr().out
    told = [line for body in blocks(ROOT / "docs" / "plan.md", "") for line in body.splitlines()]
    lines = [line for line in told if line.strip() not in ("...", "")]
    assert len(lines) > 12 and page.count("--on") > 2
    for line in lines:
        assert line in said, line


def test_every_command_on_looking_at_runs_and_every_address(tmp_path, monkeypatch, tiny_model_dir, capfd):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    short = ["--max-steps", "2", "--model.name", str(tiny_model_dir), "--orchestrator.eval.num-examples", "4"]
    assert run(["rl", "@", "examples/reverse_text/tiny.toml", "--display", "none"], short) == 0
    page = (ROOT / "docs" / "view.md").read_text()
    addresses = [
        text.replace("SLUG", "tiny-rl").replace("N", "1").replace("I", "3").replace("/A/B/", "/0/2/")
        for text in re.findall(r"`(/(?:[a-z][\w/]*/)?)`", page)
    ]
    assert {"/", "/curves/", "/run/tiny-rl/sample/1/3/", "/run/tiny-rl/change/0/2/"} <= set(addresses)
    for argv in shell_commands(ROOT / "docs" / "view.md"):
        if argv == ["hone", "view"]:
            assert look(argv, *addresses) == 0
        else:
            assert run(argv, []) == 0, (argv, capfd.readouterr().err)
    assert "tiny-rl" in Path("site/index.html").read_text()


def test_every_command_on_the_run_card_runs_in_order(tmp_path, monkeypatch, tiny_model_dir, capfd):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    few = {
        "rl": ["--max-steps", "2", "--display", "plain", "--model.name", str(tiny_model_dir)],
        "eval": ["-n", "8", "-r", "2", "-t", "8"],
    }
    for argv in shell_commands(ROOT / "docs" / "report.md"):
        stand_in(tmp_path / "outputs/a/weights", "step_150")
        extra = few.get(argv[0]) or few.get(argv[1], [])
        words = argv[: argv.index("-n")] + argv[argv.index("-r") + 2 :] if "-n" in argv else argv
        assert run(words, extra) == 0, (argv, capfd.readouterr().err)
    said = capfd.readouterr().out
    assert said.count("Wrote ") == 3 and '"format": "hone-card-1"' in said and (tmp_path / "cards/a/card.md").is_file()
    (block,) = blocks(ROOT / "docs" / "report.md", "python")
    exec(block, {})
    assert capfd.readouterr().out == "True 256\n"


def test_every_command_on_regrading_runs_in_order(tmp_path, monkeypatch, capfd):
    """In a copy of the folder that the page names; two steps, in which nothing falls."""
    folder = shutil.copytree(ROOT / "benchmarks" / "counting_aloud", tmp_path / "counting_aloud")
    monkeypatch.chdir(folder)
    monkeypatch.delitem(sys.modules, "counting_aloud", raising=False)
    for argv in shell_commands(ROOT / "docs" / "regrade.md"):
        stand_in(folder / "outputs/sft/weights", "step_1000")
        few = ["--max-steps", "2", "--display", "plain"] if argv[0] in ("sft", "rl") else []
        assert run(argv, few) == 0, (argv, capfd.readouterr().err)
    assert (folder / "scores.parquet").is_file()
    assert capfd.readouterr().out.count("graded again by the run's own task have the recorded reward") == 2


@pytest.mark.audit
def test_every_command_on_the_audit_page_runs(tmp_path, monkeypatch, capfd):
    """On four examples each; the model is an untrained one, which never comes to an end."""
    monkeypatch.chdir(tmp_path)
    for argv in shell_commands(ROOT / "docs" / "audit.md"):
        few = [] if "--template" in argv else ["-n", "4"]
        argv = ["hone/tiny" if word == "outputs/weights/step_600" else word for word in argv]
        assert run(argv, few) == ("-m" in argv), (argv, capfd.readouterr().err)
    assert "Nothing fails." in (tmp_path / "gsm8k.html").read_text()
    capfd.readouterr()
    for block in blocks(ROOT / "docs" / "audit.md", "python"):
        exec(block, {"env": load_environment("char-count")})
        said = [line.partition("  # ")[2] for line in block.splitlines() if line.startswith("print")]
        assert capfd.readouterr().out.splitlines() == said


def test_every_command_on_the_gap_runs_in_order(tmp_path, monkeypatch, tiny_model_dir, capfd):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    few = ["--max-steps", "1", "--display", "plain", "--model.name", str(tiny_model_dir), "--ckpt"]
    few += ["--orchestrator.eval", "None"]
    for argv in shell_commands(ROOT / "docs" / "gap.md"):
        assert run(argv, few if argv[0] == "rl" else []) == 0, (argv, capfd.readouterr().err)
    assert "gap.max=0.01" in capfd.readouterr().out


def test_every_command_of_the_doctor_runs(tmp_path, monkeypatch):
    """Each in a process of its own, for it looks at the variables that it was started with."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for argv in shell_commands(ROOT / "docs" / "doctor.md"):
        program = [sys.executable, patient.__file__, *argv[1:], "--offline"]
        done = subprocess.run(program, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Ready" in done.stdout.splitlines()[-2 if "--json" in argv else -1]


def test_every_command_on_alarms_runs_in_order(tmp_path, monkeypatch, tiny_model_dir, capfd):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for argv in shell_commands(ROOT / "docs" / "alarms.md"):
        few = [*substitutes(argv, tmp_path, tmp_path), "--model.name", str(tiny_model_dir)]
        assert run(argv, few if argv[0] == "rl" else []) == 0, (argv, capfd.readouterr().err)


def test_the_alarms_on_the_page_are_those_of_the_config_and_its_figures_those_recorded():
    lines = [line.split("|")[1:-1] for line in (ROOT / "docs" / "alarms.md").read_text().splitlines()]
    rows = {cells[0].strip(" `"): cells[-1].strip() for cells in lines if len(cells) == 3 and cells[0].startswith(" `")}
    settings = {name: AlarmsConfig().of(name).threshold for name in AlarmsConfig.model_fields if name in rows}
    assert len(rows) == 17 and rows == {name: "" if t is None else f"{t:g}" for name, t in settings.items()}
    recorded = json.loads((ROOT / "benchmarks" / "results" / "alarms.json").read_text())["sick"].values()
    figures = [{alarm: step - one["onset"] for alarm, step in one["raised"].items()} for one in recorded]
    told = [
        dict(re.findall(r"`(\w+)` (\d+)", cells[1]))
        for cells in lines
        if len(cells) == 2 and re.search(r"` \d", cells[1])
    ]
    assert len(told) == len(figures) == 12
    for row in told:
        assert any(row.items() <= {name: str(step) for name, step in one.items()}.items() for one in figures), row


def test_every_command_on_predictions_runs(tmp_path, monkeypatch, capfd):
    """In 41 steps of few completions, the fewest of which there is a step 40."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    few = ["--max-steps", "41", "--display", "plain", "--model.name", "hone/tiny", "--model.init.layers", "1"]
    small = ["--orchestrator.batch-size", "4", "--orchestrator.rollouts-per-example", "2"]
    small += ["--orchestrator.eval.num-examples", "4"]
    for argv in shell_commands(ROOT / "docs" / "predictions.md"):
        extra = few + (small if argv[0] == "rl" else ["--data.batch-size", "4"]) if argv[0] in ("rl", "sft") else []
        assert run(argv, extra) == 0, (argv, capfd.readouterr().err)
    said = capfd.readouterr().out
    assert said.count("reward/mean@40 > 0.6") == 4 and "Brier score of 3 decided" in said


def test_every_command_on_the_order_of_prompts_runs(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for argv in shell_commands(ROOT / "docs" / "data.md"):
        stand_in(tmp_path / "outputs/char-count-sft/weights", "step_1000")
        assert run(argv, substitutes(argv, tmp_path, tmp_path)) == 0, (argv, capfd.readouterr().err)
    said = capfd.readouterr().out
    assert said.count("200 prompts active, 0 retired (solved)") == 2, "of the run, and of its ledger"
    (block,) = blocks(ROOT / "docs" / "data.md", "toml")
    given = tomllib.loads(block)["orchestrator"]["curriculum"]
    assert PoolConfig(**given["pool"]) == PoolConfig() and CurriculumConfig(**given).window == 1


def test_the_task_on_the_grading_page_and_every_command_run_in_order(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "guarded", raising=False)
    (code,) = blocks(ROOT / "docs" / "grading.md", "python")
    (tmp_path / "guarded.py").write_text(code)
    evaluate, train, debug = shell_commands(ROOT / "docs" / "grading.md")
    assert run(evaluate, ["--no-save"]) == 0, capfd.readouterr().err
    assert "grader_timeout" in capfd.readouterr().out
    assert run(train, ["--max-steps", "2", "--display", "plain"]) == 0, capfd.readouterr().err
    assert run(debug, ["--no-save"]) == 0, capfd.readouterr().err


def test_the_settings_on_the_grading_page_are_those_of_the_config():
    from hone.config.shared import GradingConfig

    lines = (ROOT / "docs" / "grading.md").read_text().splitlines()
    rows = [line.split("|")[1:3] for line in lines if line.startswith("| `")]
    told = {name.strip(" `"): default.strip().removesuffix(" s") for name, default in rows}
    defaults = {name: field.default for name, field in GradingConfig.model_fields.items()}
    assert told == {n: "one per core" if d is None else f"{d:g}" for n, d in defaults.items()}


def test_every_command_on_monitors_runs_in_order(tmp_path, monkeypatch, capfd):
    """With the real clients; what they write is looked at in tests/runs/monitors."""
    from hone.runs.monitors import background, samples

    seconds = background.FINISH_SECONDS
    monkeypatch.setattr(background, "FINISH_SECONDS", 300.0)  # they may be slow to load
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for argv in shell_commands(ROOT / "docs" / "monitors.md"):
        stand_in(tmp_path / "outputs/tiny-sft/weights", "step_900")
        assert run(argv, substitutes(argv, tmp_path, tmp_path)) == 0, (argv, capfd.readouterr().err)
        said = capfd.readouterr().out
        shown = "trackio show --project hone" if "--trackio.project" in argv else "wandb sync outputs/tiny-"
        assert shown in said and "failed" not in said
    page = (ROOT / "docs" / "monitors.md").read_text()
    assert f"waits {seconds:.0f} seconds" in page and f"{samples.TEXT:,} characters" in page
    assert (tmp_path / "trackio" / "hone.db").is_file()


def test_every_command_on_tasks_of_mathematics_runs(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for argv in shell_commands(ROOT / "docs" / "math_tasks.md"):
        assert run(argv, ["--no-save"]) == 0, (argv, capfd.readouterr().err)


def test_every_command_on_a_task_of_ones_own_runs_in_order(tmp_path, monkeypatch, capfd):
    """As printed but for the number of steps; the commands are those that `hone init-env` prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_task", raising=False)
    init, test, sft, rl, evaluate = shell_commands(ROOT / "docs" / "your_own_task.md")
    assert run(init, []) == 0
    told = capfd.readouterr().out.splitlines()[1:5]
    assert [shlex.split(line.removeprefix("next: "), comments=True) for line in told] == [test, sft, rl, evaluate]
    done = subprocess.run([sys.executable, "-m", *test, "-q"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert run(sft, ["--max-steps", "2", "--display", "plain"]) == 0
    stand_in(tmp_path / "outputs/my-task-sft/weights", "step_500")
    few = ["--orchestrator.eval.num-examples", "4", "--orchestrator.batch-size", "16"]
    assert run(rl, ["--max-steps", "2", "--display", "plain", *few]) == 0
    stand_in(tmp_path / "outputs/my-task-rl/weights", "step_150")
    assert run(evaluate, ["--no-save"]) == 0, capfd.readouterr().err


def test_the_task_on_the_page_of_ones_own_grades_demonstrates_and_trains(tmp_path, monkeypatch, capfd):
    from hone.environments import load_environment

    code, _ = blocks(ROOT / "docs" / "your_own_task.md", "python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 30
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "largest", raising=False)
    (tmp_path / "largest.py").write_text(code)
    env = load_environment("largest")
    example = env.example(question="…", answer="987")
    completions = ["<answer>987</answer>", "\\boxed{987}", "ANSWER: 987", "<answer>986</answer>", "987"]
    assert [env.grade(example, text).reward for text in completions] == [1.0, 1.0, 1.0, 0.1, 0.0]
    examples, rng = env.split("train")[:300], np.random.default_rng(0)
    assert all(env.grade(example, env.reference(example)).reward == 1.0 for example in examples)
    shown = [env.grade(example, env.demonstrate(example, rng)).outcome for example in examples]
    assert shown.count("correct") / 300 == pytest.approx(7 / 9, abs=0.06) and set(shown) == {"correct", "wrong"}
    few = ["--max-steps", "1", "--orchestrator.batch-size", "8", "--orchestrator.rollouts-per-example", "4"]
    assert run(["rl", "--orchestrator.env.id", "largest", *few], ["--seq-len", "128", "--display", "plain"]) == 0
    assert "on largest" in capfd.readouterr().out


def test_the_task_with_tools_on_the_page_of_ones_own_demonstrates_trains_and_rolls_out(tmp_path, monkeypatch, capfd):
    from hone.environments import load_environment
    from hone.runs import Run

    _, code = blocks(ROOT / "docs" / "your_own_task.md", "python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 28
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "times", raising=False)
    (tmp_path / "times.py").write_text(code)
    env = load_environment("times")
    example = env.example(question="12 * 34?", answer="408", info={"a": 12, "b": 34})
    called = env.called("multiply", a=12, b=34)
    assert called[1]["content"] == "408" and env.responds_inline
    done = {"role": "assistant", "content": "<answer>408</answer>"}
    assert env.grade(example, [*called, done]).reward == 1.0 and env.grade(example, called).reward == 0.0
    examples, rng = env.split("train")[:200], np.random.default_rng(0)
    shown = [env.grade(example, env.demonstrate(example, rng)).outcome for example in examples]
    assert shown.count("correct") / 200 == pytest.approx(2 / 3, abs=0.1) and set(shown) == {"correct", "wrong"}
    few = ["--display", "plain", "--max-steps"]
    assert (
        run(["sft", "--data.env.id", "times", "--model.name", "hone/tiny"], [*few, "2", "--data.seq-len", "512"]) == 0
    )
    model = ["--model.name", "outputs/weights/step_2", "--output-dir", "rl"]
    few += ["1", "--orchestrator.batch-size", "4", "--orchestrator.rollouts-per-example", "2", "--seq-len", "320"]
    assert run(["rl", "--orchestrator.env.id", "times", *model], few) == 0, capfd.readouterr().err
    row = Run("rl").rollouts(0).to_pylist()[0]
    assert "on times" in capfd.readouterr().out and json.loads(row["prompt"])[0]["content"].endswith("?")
    assert json.loads(row["completion"])[0]["role"] == "assistant"


@pytest.mark.adapters
def test_every_command_on_adapters_runs_in_order(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for argv in shell_commands(ROOT / "docs" / "adapters.md"):
        if argv[0] == "make":
            continue
        stand_in(tmp_path / "outputs/spell-sft/weights", "step_100")
        few = ["--max-steps", "2", "--display", "plain", "--orchestrator.sampling.max-tokens", "16"]
        few = {"rl": few, "sft": few[:4]}.get(argv[0], [])
        assert run(argv, few) == 0, (argv, capfd.readouterr().err)


def test_the_tasks_that_are_refused_are_those_of_the_page():
    from hone.environments.adapters.reasoning_gym_tasks import REFUSED, SCORED

    page = (ROOT / "docs" / "adapters.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(REFUSED)
    assert f"Of its {len(SCORED) + len(REFUSED)} tasks {len(SCORED)} are taken" in page


def test_the_bands_on_the_gap_page_are_those_of_the_code():
    from hone.algorithms.gap import BANDS

    lines = (ROOT / "docs" / "gap.md").read_text().splitlines()
    rows = [line.split("|")[1:4] for line in lines if line.startswith(("| hone, ", "| vLLM, "))]
    told = {name.strip(): [float(n) for n in (*fine.split(","), stop)] for name, fine, stop in rows}
    named = {"hone, `fp32`": ("hone", "fp32"), "hone, `bf16_linear` and `bf16`": ("hone", "bf16")}
    named |= {"vLLM, both in fp32": ("vllm", "fp32"), "vLLM, else": ("vllm", "bf16")}
    assert told == {name: [b.mean, b.max, b.stop] for name, key in named.items() for b in [BANDS[key]]}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_fenced_line_is_a_command_that_exists(page):
    for argv in shell_commands(page):
        assert argv[0] in COMMANDS, f"{page.name}: {' '.join(argv)} is run by no test"
        if argv[0] == "make":
            dry = subprocess.run(["make", "-n", *argv[1:]], cwd=ROOT, capture_output=True, text=True)
            assert dry.returncode == 0, dry.stderr


def test_every_pip_command_installs_what_an_index_has():
    """hone is on no index, so its extras are had by the requirements that they stand for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    required = {re.split(r"[<>=\[]", one)[0]: one for one in known}
    files = [
        *PAGES,
        *(path for folder in ("src", "environments", "benchmarks") for path in (ROOT / folder).rglob("*.py")),
    ]
    found = {
        (path.name, target)
        for path in files
        for target in re.findall(r"pip install\s+[\"']?([\w.\[\]<>=,-]+)", path.read_text())
    }
    assert {"wandb", "trackio>=0.43", "vllm>=0.32"} <= {target for _, target in found}
    for file, target in found:
        name = re.split(r"[<>=\[]", target)[0]
        assert name != "hone-rl" and target == required.get(name, target), (file, target)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


def header_commands() -> list[tuple[str, list[str]]]:
    """The commands in the comments of the example configs, continuation lines joined."""
    found = []
    for path in sorted((ROOT / "examples").rglob("*.toml")):
        text = path.read_text().replace("\\\n#", "")
        for line in re.findall(r"^#   +((?:hone )?(?:sft|rl) @? ?.*|(?:hone )?rl --.*)$", text, re.MULTILINE):
            found.append((str(path.relative_to(ROOT)), shlex.split(line, comments=True)))
    return found


@pytest.mark.parametrize(("file", "argv"), header_commands(), ids=lambda value: " ".join(value)[:60])
def test_every_command_in_an_example_config_parses(file, argv, monkeypatch):
    from hone.config.parse import parse
    from hone.config.rl import RLConfig
    from hone.config.sft import SFTConfig

    monkeypatch.chdir(ROOT)
    argv = argv[1:] if argv[0] == "hone" else argv
    config = parse(RLConfig if argv[0] == "rl" else SFTConfig, argv[1:], argv[0])
    flag = argv.index("--max-steps") + 1 if "--max-steps" in argv else None
    assert config.max_steps == (int(argv[flag]) if flag else tomllib.loads((ROOT / file).read_text())["max_steps"]), (
        file
    )
    inside = Path(config.output_dir) in Path(config.model.name).parents
    assert not inside, f"{file}: the run would hold its own model"


def test_each_example_config_shows_its_command():
    shown = {file for file, _ in header_commands()}
    assert {"sft.toml", "rl.toml", "tiny.toml", "tiny_sft.toml"} <= {Path(file).name for file in shown}
