"""What every test stands on: one thread, no network, and a tiny model made from nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

# Before torch is imported anywhere: OpenMP reads these once.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "offline"

import pytest
from recorded import Bench

LONG_FILES = ("test_docs.py", "test_invariant.py")
"""Run after the contracts and before all others, so that no worker ends with one of them."""
IN_CI = {
    "split": {"test_launch.py"},
    "device": {"test_counts.py", "test_decoding.py", "test_fake_cuda.py", "test_updates.py"},
    "adapters": {"test_verifiers.py"},
    "sandbox": {"test_sandbox.py"},
    "audit": {"test_preflight.py"},
}
"""Files of each suite that run with HONE_PART=ci; `make test-all` runs all. Of the long contracts see HONE_EVERY."""

SLOW = """
commands/test_detach commands/test_init_env commands/test_quickstart commands/test_rl commands/test_sft
commands/test_stopping commands/test_template commands/test_trust contracts/ device/test_attention
environments/test_tasks.py::test_rows environments/test_workers.py::test_what extensions/agents/test_agent_runs
extensions/agents/test_agents.py::test_a_command_ extensions/agents/test_agents.py::test_a_program_that_fails
extensions/alarms/test_alarmed_runs extensions/alarms/test_predicted_runs extensions/audit/test_environment
extensions/chat extensions/planning/test_calibration extensions/planning/test_doctor extensions/reproduce/test_diff
extensions/reproduce/test_reward_check extensions/reproduce/test_verify extensions/server/test_inference
extensions/server/test_rl_served extensions/server/test_tools extensions/services/test_rl_taught
extensions/services/test_services.py::test_a_run_with extensions/split/test_trainer extensions/studies/test_study
extensions/trackers/test_wandb extensions/viewer/test_broken_runs extensions/viewer/test_report grading/test_pool
inference/test_cache inference/test_invariant loops/test_own_functions loops/test_rl loops/test_sft model/test_foreign
model/test_fusion model/test_head test_api test_architecture test_benchmarks test_cloud test_docs test_recipes
trainer/test_heap trainer/test_memory trainer/test_optim trainer/test_parallel trainer/test_sft_loop
"""
"""Most of what takes more than two seconds, and no suite of its own: marked `slow`."""

WHOLE = {
    "commands/test_trust.py": "every command that opens a run",
    "contracts/test_reproduce.py": "recorded runs: replay, verify, regrade and diff",
    "config/test_retired.py": "retired keys of all extensions",
    "test_benchmarks.py": "benchmarks, most of them of an extension",
    "test_docs.py": "what the pages say, with the commands of extensions",
    "test_examples.py": "configs of examples, for servers and roles too",
    "test_recorded.py": "recorded benchmarks",
    "test_web.py": "every HTTP client of hone",
}
"""Tests outside of tests/extensions that by nature need extensions: what they are of."""
if not any((Path(__file__).parents[1] / "src/hone/extensions").glob("*/extension.py")):
    collect_ignore = [*WHOLE]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    from hone.extension import extensions

    slow, suites = tuple(SLOW.split()), {*re.findall(r"not (\w+)", " ".join(config.getini("addopts")))}
    for item in items:
        if item.nodeid[len("tests/") :].startswith(slow) and suites.isdisjoint(
            mark.name for mark in item.iter_markers()
        ):
            item.add_marker("slow")
        if gone := {name for mark in item.iter_markers("needs") for name in mark.args} - extensions().keys():
            item.add_marker(pytest.mark.skip(reason=f"needs the extension {min(gone)}"))

    def left_out(item: pytest.Item) -> bool:
        return any(item.get_closest_marker(mark) and item.path.name not in files for mark, files in IN_CI.items())

    if os.environ.get("HONE_PART") == "ci":
        config.hook.pytest_deselected(items=[item for item in items if left_out(item)])
        items[:] = [item for item in items if not left_out(item)]
    items.sort(key=lambda item: 0 if item.path.parent.name == "contracts" else 1 + (item.path.name not in LONG_FILES))


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT means Ctrl-C, also where these tests run in the background of a shell, which has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def _own_path() -> Iterator[None]:
    """What the task files of a test put on the path goes with it."""
    before = list(sys.path)
    yield
    sys.path[:] = before


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder in Hugging Face layout with `hone/tiny` of seed 0 and its tokenizer. Read only: tests share it."""
    from hone.model.hf import load_model, save_model
    from hone.model.tokenizer import save_tokenizer

    folder = tmp_path_factory.mktemp("tiny-model")
    save_model(load_model("hone/tiny", seed=0), folder)
    save_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def warm_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny model after a short SFT. Read only."""
    import recipes

    return recipes.warm_model(tmp_path_factory.mktemp("warm"))


@pytest.fixture(scope="session")
def guesser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny model that says a digit and ends its turn, for tests/contracts/guessing.py. Read only."""
    return _imitator("guessing", {}, 60, tmp_path_factory.mktemp("guesser"))


@pytest.fixture(scope="session")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny model that calls a tool, always with the same arguments, for tests/contracts/adding.py."""
    return _imitator("adding", {"spelled": True}, 80, tmp_path_factory.mktemp("caller"))


def _imitator(task: str, args: dict, steps: int, folder: Path) -> Path:
    from hone.cli import call

    words = f"--model.name hone/tiny --model.init.layers 1 --model.init.hidden 48 --data.env.id {task}"
    words += f" --max-steps {steps} --data.batch-size 16 --no-data.pack --data.seq-len 512 --optim.lr 5e-3"
    words += f" --precision fp32 --display none --output-dir {folder / 'sft'}"
    assert call("sft", [*words.split(), "--data.env.args", json.dumps(args)], "hone sft") == 0
    return folder / "sft" / "weights" / f"step_{steps}"


# Recorded runs that several suites share; each of those copies what it changes.


@pytest.fixture(scope="session")
def bench(tmp_path_factory, tiny_model_dir) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench"), tiny_model_dir)


@pytest.fixture(scope="session")
def rl_run(bench) -> Path:
    """Read only."""
    return bench.rl("rl")


@pytest.fixture
def copied(rl_run, tmp_path) -> Path:
    return shutil.copytree(rl_run, tmp_path / "copied")


@pytest.fixture(scope="session")
def sft_run(bench) -> Path:
    """Read only."""
    return bench.sft("sft")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory; the path and the modules that a test imports are as before after it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
