"""The pages of the documentation: every command parses, every block of Python compiles, and what is cheap is run.

A page of commands that are run in their order, cut to a few steps, has a row in RUN. Links, extras, tables and outputs
that pages show are compared with the code.
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
import pytest

from hone.algorithms.gap import band_of
from hone.cli import commands, main
from hone.config.algorithms import ALGORITHMS
from hone.config.parse import parse
from hone.environments import load_environment
from hone.extensions.audit.probes import play_many
from hone.extensions.libraries.reasoning_gym import REFUSED, SCORED
from hone.extensions.trackers.monitors import FINISH_SECONDS
from hone.runs import Run

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
BENCHMARKS = ROOT / "benchmarks" / "README.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "studies" / "README.md", BENCHMARKS]
PAGES += sorted(DOCS.glob("*.md"))

PLAN, TASKS, REWARDS, PYTHON = (DOCS / f"{name}.md" for name in ("rented_gpu", "tasks", "rewards", "python"))
WATCHING, TRAINING, REPRODUCIBILITY = (DOCS / f"{name}.md" for name in ("watching", "training", "reproducibility"))
ALGORITHMS_PAGE = DOCS / "algorithms.md"
RUN = (ROOT / "README.md", DOCS / "index.md", REWARDS, REPRODUCIBILITY, ALGORITHMS_PAGE, TRAINING)
"""Pages whose commands are run in order. Others run those of scale.md and of agents (tests/extensions), of
`hone init-env` (tests/commands), of tasks (tests/test_recipes.py) and of scripts for clouds (tests/test_cloud.py)."""
PRINTING = (REWARDS,)
"""Pages whose Python is run where it prints: `print(…)  # what it prints`. The sandbox's has a test beside it."""
OTHER_PROGRAMS = ("make", "pytest", "export", "source", "bash", "hf", "torchrun", "pip", ".venv/bin/pytest")
OTHER_PROGRAMS += ("rsync", "modal", "mkdir", "cd")
NOT_RUN = {"quickstart", "doctor", "gsm8k", "--wandb.project", "--trackio.project", "--on", "--template", "study"}
NOT_RUN |= {"inference", "--teacher.base-url", "chat", "outputs/quickstart", "--data.run"}
NOT_RUN |= {"outputs/strict", "outputs/strict/config.toml"}
"""Words of commands that are parsed but not run: they want a hub or a service, or other tests run them."""
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [body for tag, body in FENCE.findall(page.read_text()) if tag == language]


def shell_commands(page: Path) -> list[list[str]]:
    lines = [line for body in blocks(page, "bash") for line in body.splitlines() if line.strip()]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def words_of_hone(argv: list[str]) -> list[str] | None:
    """The command as words of `hone`; None for other programs."""
    if argv[0] == "torchrun":  # a script of hone's on several ranks
        script = next(i for i, word in enumerate(argv) if word.endswith(".py"))
        return ["sft" if argv[script].endswith("sft.py") else "trainer", *argv[script + 1 :]]
    if argv[0] == "ssh":
        return words_of_hone(shlex.split(argv[-1].split("&& ")[-1].replace(".venv/bin/", "").replace("PRICE", "2")))
    if argv[0] == "sbatch" or "--command" in argv:
        return words_of_hone(argv[2:] if argv[0] == "sbatch" else shlex.split(argv[argv.index("--command") + 1]))
    if argv[0] in OTHER_PROGRAMS:
        return None
    return argv[1:] if argv[0] == "hone" else ["eval" if argv[0] == "vf-eval" else argv[0], *argv[1:]]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that pages name: recipes, data, and a program's rewards."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples", "examples")
    shutil.copytree(ROOT / "studies", "studies")
    shutil.copytree(ROOT / "benchmarks/counting_aloud", ".", dirs_exist_ok=True)
    shutil.copytree(ROOT / "src/hone/commands/scaffold", "my_task")
    rows = [{"prompt": f"{i} + 1", "completion": str(i + 1), "answer": str(i + 1)} for i in range(20)]
    for name in ("rows.jsonl", "problems.jsonl"):
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("rewards.py").write_text(
        "def exact(completion, answer):\n    return float(completion[-1]['content'].strip() == answer)\n"
    )
    for module in ("counting_aloud", "largest", "two_tries"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_parse_python_compiles_and_links_lead_somewhere(page: Path, here: Path):
    for body in blocks(page, "toml"):
        if name := re.match(r"# (\w+\.toml)\n", body):
            Path(name[1]).write_text(body)
    for argv in shell_commands(page):
        if (words := words_of_hone(argv)) is None:
            continue
        name = next((name for name in (" ".join(words[:2]), words[0]) if name in commands()), None)
        assert name, f"{page.name}: {shlex.join(argv)}: hone has no such command"
        if words[:2] == ["eval", "@"]:
            words[1:3] = []  # a run's config, which is made into flags before they are parsed
        for index, word in enumerate(words):  # the config of a run that the page's own commands would make
            if word == "@" and words[index + 1].startswith("outputs/"):
                words[index + 1] = "examples/reverse_text/tiny" + "_sft" * ("sft" in words[index + 1]) + ".toml"
        parse(commands()[name].config(), words[len(name.split()) :], f"hone {name}")
    for body in blocks(page, "python"):
        compile(body, page.name, "exec")
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), f"in a clone there is no {target}"


def test_every_target_of_make_is_there():
    targets = {argv[1] for page in PAGES for argv in shell_commands(page) if argv[0] == "make"}
    dry = subprocess.run(["make", "-n", *sorted(targets)], cwd=ROOT, capture_output=True, text=True)
    assert len(targets) > 8 and dry.returncode == 0, dry.stderr


def cut(words: list[str], model: Path) -> list[str]:
    """The command in a few steps and with few completions, from a model that there is."""
    fewer = {"--ckpt.interval": "1", "--resume.step": "1"}
    words = [fewer.get(words[i - 1], word) for i, word in enumerate(words)]
    for weights in {match for word in words for match in re.findall(r"[\w/.-]+/weights/step_\d+", word)}:
        stand_in(Path(weights), model)
    train = ["--max-steps", "2", "--display", "plain", "--model.name", str(model)]
    few = ["--orchestrator.batch-size", "8", "--orchestrator.rollouts-per-example", "4"]
    few += ["--orchestrator.sampling.max-tokens", "8"]
    named = any(word.startswith("eval/") for word in words)
    few += ["--orchestrator.eval.interval", "1"] if named else ["--orchestrator.eval", "None"]
    return words + {
        "rl": [*train, *few],
        "sft": [*train, "--data.batch-size", "4", "--val.max-examples", "4"],
        "eval": ["-n", "4", "-r", "1", "-t", "8"],
        "audit": ["-n", "2"],
    }.get(words[0], [])


def stand_in(weights: Path, model: Path) -> None:
    """Make a version that a whole run would have: the last that there is, or the untrained model."""
    if not weights.exists():
        weights.parent.mkdir(parents=True, exist_ok=True)
        there = sorted(weights.parent.glob("step_*"))
        weights.symlink_to(there[-1].name if there else model)


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_the_commands_of_a_page_run_in_order(page: Path, here: Path, tiny_model_dir: Path, capfd):
    for argv in shell_commands(page):
        if (words := words_of_hone(argv)) is None or NOT_RUN & set(argv):
            continue
        if words[0] == "view":
            assert look(words, "/") == 0
            continue
        code = main(cut(words, tiny_model_dir))
        assert code == 0 or (code == 1 and words[0] in ("diff", "audit")), (argv, capfd.readouterr().err)


def look(words: list[str], *paths: str) -> int:
    """Run `hone view` until it has answered `paths`; the exit code after Ctrl-C."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "hone.cli", *words, "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            assert f"http://127.0.0.1:{port}/" in server.stdout.readline()
            for path in paths:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as page:
                    assert "<h1>" in page.read().decode()
        finally:
            server.send_signal(signal.SIGINT)
        return server.wait(300)


def test_every_address_of_the_viewer_answers(here: Path, tiny_model_dir: Path):
    few = ["--max-steps", "2", "--display", "none", "--model.name", str(tiny_model_dir)]
    few += ["--orchestrator.batch-size", "16", "--orchestrator.eval.num-examples", "4"]
    assert main(["rl", "@", "examples/reverse_text/tiny.toml", *few]) == 0
    named = re.findall(r"^\| `(/(?:[a-zA-Z/]*/)?)` \|", WATCHING.read_text(), re.MULTILINE)
    paths = [path.replace("SLUG", "tiny-rl").replace("/N/", "/1/").replace("/I/", "/3/") for path in named]
    paths = [path.replace("/A/B/", "/0/2/") for path in paths]
    assert {"/", "/curves/", "/run/tiny-rl/sample/1/3/", "/run/tiny-rl/change/0/2/"} <= set(paths)
    assert look(["view"], *paths) == 0


def test_the_python_page_runs_in_order(here: Path, tiny_model_dir: Path, capfd):
    stand_in(Path("outputs/tiny-sft/weights/step_900"), tiny_model_dir)
    program = [cut_short(body, tiny_model_dir) for body in blocks(PYTHON, "python")]
    Path("script.py").write_text("\n".join(program))
    names = runpy.run_path("script.py", run_name="__main__")
    assert names["rl"].version == 2 and "\n2 " in capfd.readouterr().out
    kept = runpy.run_path("outputs/two/rewards.py")
    assert kept["short"](["text", "longer"], [2, 2]) == [0.2, 0.0] and Path("outputs/two/data.jsonl").exists()
    (argv,) = shell_commands(PYTHON)
    few = ["--orchestrator.batch-size", "8", "--orchestrator.rollouts-per-example", "4", "--seq-len", "64"]
    few += ["--max-steps", "2", "--orchestrator.sampling.max-tokens", "6", "--model.name", str(tiny_model_dir)]
    assert main([*argv, *few]) == 0
    assert Path("outputs/by-flags/weights/step_2").is_dir()


def test_the_algorithms_page_names_each_and_its_own_functions_train(here: Path, tiny_model_dir: Path):
    text = ALGORITHMS_PAGE.read_text()
    named = [row[0] for row in table(ALGORITHMS_PAGE, "| `") if row[0] in ALGORITHMS]
    assert named == list(ALGORITHMS)
    (sentence,) = re.findall(r"\+ 1e-4\. (.*?) count groups", text, re.DOTALL)
    counting = [name for name, keys in ALGORITHMS.items() if keys["trainer.loss.count_filtered"]]
    assert re.findall(r"`([a-z_+]+)`", sentence) == counting
    stand_in(Path("outputs/tiny-sft/weights/step_900"), tiny_model_dir)
    (program,) = blocks(ALGORITHMS_PAGE, "python")
    small = "**{'orchestrator.batch_size': 8, 'orchestrator.rollouts_per_example': 4, 'orchestrator.eval': False},"
    Path("mine.py").write_text(program.replace("max_steps=5,", f"max_steps=2, {small}"))
    names = runpy.run_path("mine.py", run_name="__main__")
    assert {abs(a) for a in names["run"].rollouts(0)["advantage"].to_pylist()} <= {0.0, 1.0, 2.0, 3.0}
    assert "def softer" in Path("outputs/mine/algorithm.py").read_text()


def cut_short(body: str, model: Path) -> str:
    """A program of two steps, on a local model and with few completions; nothing else of it changes."""
    small = "{'seq_len': 64, 'orchestrator.batch_size': 8, 'orchestrator.rollouts_per_example': 4, 'ckpt': True, "
    small += "'orchestrator.sampling.max_tokens': 6, 'orchestrator.eval.num_examples': 2}"
    body = re.sub(r"max_steps=\d+", f"max_steps=2, **{small}" if "hone.rl(" in body else "max_steps=2", body)
    changes = {
        "Qwen/Qwen3-0.6B": str(model),
        "step=99": "step=1",
        "rollouts(99)": "rollouts(1)",
        "num_examples=50": "num_examples=2, max_tokens=6",
        "num_examples=64": "num_examples=2",
        "seed=1) as rl": f"seed=1, max_steps=2, **{small} | {{'model': {str(model)!r}}}) as rl",
        "rl.version % 50": "rl.version % 2",
        "step_100": "step_2",
    }
    for long, short in changes.items():
        body = body.replace(long, short)
    return body


@pytest.mark.parametrize("page", PRINTING, ids=lambda page: page.name)
def test_python_prints_what_the_page_says(page: Path, here: Path, capfd):
    printing = [body for body in blocks(page, "python") if "  # " in body and "\nprint(" in body]
    for body in printing:
        exec(compile(body, page.name, "exec"), {})
        shown = [line.split("  # ")[1] for line in body.splitlines() if line.startswith("print(")]
        assert capfd.readouterr().out.splitlines() == shown
    assert printing


def test_the_task_of_the_page_grades_and_demonstrates(here: Path):
    (body,) = [body for body in blocks(TASKS, "python") if 'id="largest"' in body]
    assert len([line for line in body.splitlines() if line.strip()]) <= 30
    Path("largest.py").write_text(body)
    env = load_environment("largest")
    example = env.example(question="…", answer="987")
    completions = ["<answer>987</answer>", "\\boxed{987}", "ANSWER: 987", "<answer>986</answer>", "987"]
    assert [env.grade(example, text).reward for text in completions] == [1.0, 1.0, 1.0, 0.1, 0.0]
    assert env.grade(env.example(question="…", answer="none"), "ANSWER: none").reward == 0.0, "no number is no answer"
    examples, rng = env.split("train")[:200], np.random.default_rng(0)
    shown = [env.grade(example, env.demonstrate(example, rng)).outcome for example in examples]
    assert shown.count("correct") / 200 == pytest.approx(7 / 9, abs=0.1) and set(shown) == {"correct", "wrong"}


def test_the_rollout_of_the_page_is_recorded_whole_and_verified(here: Path, tiny_model_dir: Path):
    """With answers that are right by their length, and one rollout in four that breaks at its end."""
    (code,) = [body for body in blocks(TASKS, "python") if "TwoTries" in body]
    assert len([line for line in code.splitlines() if line.strip()]) <= 25
    Path("uncaught.py").write_text(code.replace("with suppress(NoRoom)", "if True"))
    right = "float(same_number(PARSER.parse_answer(completion), answer))"
    broken = code.replace("return replace", 'assert model.key() % 4, "it broke"\n        return replace')
    Path("two_tries.py").write_text(broken.replace(right, 'len(completion[-1]["content"]) % 3 // 2'))
    few = ["--max-steps", "2", "--seq-len", "128", "--orchestrator.batch-size", "16", "--no-audit", "--display", "none"]
    few += ["--orchestrator.sampling.max-tokens", "8", "--no-orchestrator.eval", "--model.name", str(tiny_model_dir)]
    assert main(["rl", "--orchestrator.env.id", "two-tries", *few, "--output-dir", "two"]) == 0
    rows, hints, lengths = [row for step in range(2) for row in Run("two").rollouts(step).to_pylist()], set(), set()
    for row in rows:
        said = [message["content"] for message in json.loads(row["completion"] or "[]")] or [row["text"]]
        tries, hints = [len(text) % 3 // 2 for text in said[::2]], hints | set(said[1::2])
        lengths.add(len(tries))
        if row["state"] == "failed":
            assert "AssertionError: it broke" in row["detail"]
        else:
            assert row["call_rewards"] == tries and row["reward"] == 0.9 * tries[-1] + 0.1 * (tries == [1])
    assert hints == {"Try again.", "Count again."} and lengths == {1, 2} and "failed" in {row["state"] for row in rows}
    trusted = ["two", "--trust-local-task"]
    assert main(["verify", *trusted]) == main(["replay", "two"]) == main(["regrade", *trusted]) == 0
    env = load_environment("uncaught")
    (scripted,) = play_many(env, [(env.split("train")[0], "a")])
    assert [message["content"] for message in scripted.messages] == ["ANSWER: 0+0?", "a"] and scripted.failure is None


def test_the_plans_of_the_page_print_what_it_says(monkeypatch, capfd):
    monkeypatch.chdir(ROOT)
    for argv in shell_commands(PLAN):
        if argv[:2] == ["hone", "plan"] and "--calibrate" not in argv:
            assert main(argv[1:]) == ("16gb" in argv), (argv, capfd.readouterr().err)
    lines = [line for body in blocks(PLAN, "") for line in body.splitlines() if line.strip() not in ("...", "")]
    printed = capfd.readouterr().out
    assert len(lines) > 4 and [line for line in lines if line not in printed] == []


def test_the_table_of_what_fits_is_what_its_script_prints():
    rows = runpy.run_path(str(ROOT / "scripts" / "memory_table.py"))["rows"]()
    assert "\n".join(rows) in PLAN.read_text() and any("8bit" in row for row in rows)


def test_the_table_of_gpus_is_what_its_script_prints():
    script = runpy.run_path(str(ROOT / "scripts" / "gpu_table.py"))
    assert "\n".join(script["rows"](script["recorded"]())) in BENCHMARKS.read_text()


def table(page: Path, start: str) -> list[list[str]]:
    """The cells of the rows that begin with `start`, without code marks."""
    lines = page.read_text().splitlines()
    return [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in lines if line.startswith(start)]


def test_the_tables_are_those_of_the_code():
    named = {"hone, `fp32": ("hone", "fp32", 4), "hone, `bf16_linear` and `bf16": ("hone", "bf16", 4)}
    named |= {
        "hone, `bf16_linear`, 28 layers": ("hone", "bf16_linear", 28),
        "hone, `bf16`, 28 layers": ("hone", "bf16", 28),
    }
    named |= {"vLLM, both in fp32": ("vllm", "fp32", 4), "vLLM, else": ("vllm", "bf16", 4)}
    named |= {"vLLM in bf16, 28 layers": ("vllm", "bf16", 28)}
    rows = {
        row[0]: [float(n) for n in (*row[1].split(","), row[2])] for row in table(TRAINING, "| ") if row[0] in named
    }
    assert rows == {name: [b.mean, b.max, b.stop] for name, key in named.items() for b in [band_of(*key)]}

    recorded = json.loads((ROOT / "benchmarks/results/alarms.json").read_text())
    sick = [[step - run["onset"] for step in run["raised"].values()] for run in recorded["sick"].values()]
    assert len(sick) == 12 and all(min(n for n in steps if n >= 0) <= 25 for steps in sick)
    assert not recorded["healthy"]["false_alarms"]

    assert f"waits {FINISH_SECONDS:.0f} seconds" in WATCHING.read_text()
    text = " ".join(TASKS.read_text().split())
    assert f"hone takes {len(SCORED)} of its {len(SCORED) + len(REFUSED)} tasks" in text


def test_every_pip_command_installs_what_an_index_has():
    """hone is on no index, so its extras are had by the requirements that they stand for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    required = {re.split(r"[<>=\[]", one)[0]: one for one in known}
    python = [path for folder in ("src", "environments", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    found = {
        (path.name, target)
        for path in [*PAGES, *python]
        for target in re.findall(r"pip install\s+[\"']?(?!-)([\w.\[\]<>=,-]+)", path.read_text())
    }
    assert {"wandb", "trackio>=0.43", "vllm>=0.32"} <= {target for _, target in found}
    for file, target in found:
        name = re.split(r"[<>=\[]", target)[0]
        assert name != "hone-rl" and target == required.get(name, target), (file, target)


def test_the_commands_in_the_example_configs_parse(monkeypatch):
    """Those in their comments, continuation lines joined."""
    monkeypatch.chdir(ROOT)
    shown = set()
    for path in sorted((ROOT / "examples").rglob("*.toml")):
        text = path.read_text().replace("\\\n#", "")
        for line in re.findall(r"^#   +((?:hone )?(?:sft|rl) @? ?.*|(?:hone )?rl --.*)$", text, re.MULTILINE):
            words = words_of_hone(shlex.split(line, comments=True)) or []
            config = parse(commands()[words[0]].config(), words[1:], words[0])
            steps = tomllib.loads(text)["max_steps"]
            if "--max-steps" in words:
                steps = int(words[words.index("--max-steps") + 1])
            assert config.max_steps == steps, path
            inside = Path(config.output_dir) in Path(config.model.name).parents
            assert not inside, f"{path}: the run would hold its own model"
            shown.add(path.name)
    assert {"sft.toml", "rl.toml", "tiny.toml", "tiny_sft.toml"} <= shown
