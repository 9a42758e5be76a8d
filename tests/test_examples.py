"""The recipes in examples/ hold the numbers they claim, and the three-file command is the same run as the one file."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from algorithms import OWN_FLAGS

from hone.config.algorithms import ALGORITHMS
from hone.config.base import BaseConfig
from hone.config.parse import parse
from hone.config.rl import AdvantageConfig, RLConfig
from hone.config.sft import SFTConfig
from hone.config.shared import ModelConfig, transport_weights
from hone.extensions.server.config import ServeConfig
from hone.extensions.split.config import OrchestratorRole, TrainerRole

ROOT = Path(__file__).parent.parent
REVERSE_TEXT = "examples/reverse_text"
QWEN_SFT = "PrimeIntellect/Qwen3-0.6B-Reverse-Text-SFT"


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def rl(line: str) -> RLConfig:
    return parse(RLConfig, shlex.split(line), "rl")


def sft(line: str) -> SFTConfig:
    return parse(SFTConfig, shlex.split(line), "sft")


def values(config: BaseConfig, *names: str) -> list[Any]:
    """The values of dotted names."""
    found = []
    for name in names:
        value: Any = config
        for part in name.split("."):
            value = getattr(value, part)
        found.append(value)
    return found


def test_sft() -> None:
    config = sft(f"@ {REVERSE_TEXT}/sft.toml --wandb.project P --wandb.name N --ckpt")
    numbers = {
        "model.name": "PrimeIntellect/Qwen3-0.6B",
        "data.name": "willcb/R1-reverse-wikipedia-paragraphs-v1-1000",
        "max_steps": 100,
        "data.batch_size": 16,
        "data.seq_len": 4096,
        "data.pack": True,
        "optim.lr": 2e-5,
    }
    assert values(config, *numbers) == list(numbers.values())
    assert values(config, "wandb.project", "wandb.name", "output_dir") == ["P", "N", Path("outputs")]
    assert config.ckpt is not None


RL_NUMBERS = {
    "max_steps": 40,
    "seq_len": 128,
    "model.name": QWEN_SFT,
    "trainer.optim.lr": 3e-6,
    "orchestrator.batch_size": 128,
    "orchestrator.rollouts_per_example": 16,
    "orchestrator.sampling.max_tokens": 64,
    "orchestrator.sampling.temperature": 1.0,
    "orchestrator.env.id": "reverse-text",
    "orchestrator.advantage.scale": "none",
    "orchestrator.eval.interval": 10,
    "trainer.loss.kl_coef": 0.0,
}
THREE_FILES = (
    f"--trainer @ {REVERSE_TEXT}/rl/train.toml --orchestrator @ {REVERSE_TEXT}/rl/orch.toml "
    f"--inference @ {REVERSE_TEXT}/rl/infer.toml"
)


def test_rl() -> None:
    config = rl(f"@ {REVERSE_TEXT}/rl.toml")
    assert values(config, *RL_NUMBERS) == list(RL_NUMBERS.values())
    assert config.mode is None and config.ckpt is not None


def test_rl_in_three_files_is_the_same_run_in_split_mode() -> None:
    config = rl(THREE_FILES)
    assert config.mode == "split"
    one = rl(f"@ {REVERSE_TEXT}/rl.toml")
    assert config.model_copy(update={"mode": None}) == one
    assert rl(f"{THREE_FILES} --mode colocated").model_copy(update={"mode": None}) == one


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithms_are_compared_by_the_tiny_recipe(name: str) -> None:
    """But for the algorithm, and how often it is evaluated."""
    plain, tiny = rl("@ examples/algorithms/tiny.toml"), rl(f"@ {REVERSE_TEXT}/tiny.toml")
    orchestrator = tiny.orchestrator.model_copy(
        update={"eval": plain.orchestrator.eval, "advantage": AdvantageConfig()}
    )
    other = {"output_dir": plain.output_dir, "orchestrator": orchestrator}
    assert plain.output_dir != tiny.output_dir and tiny.model_copy(update=other) == plain
    own = " ".join(OWN_FLAGS.get(name, []))
    config = rl(f"@ examples/algorithms/tiny.toml --algorithm {name} {own}")
    assert values(config, *ALGORITHMS[name]) == list(ALGORITHMS[name].values())


def test_tiny_rl_goes_on_from_tiny_sft() -> None:
    before = sft(f"@ {REVERSE_TEXT}/tiny_sft.toml")
    config = rl(f"@ {REVERSE_TEXT}/tiny.toml")
    assert config.model.name == str(before.output_dir / "weights" / f"step_{before.max_steps}")
    assert config.output_dir != before.output_dir


def test_tiny_rl_in_three_files_is_the_same_run_in_split_mode() -> None:
    config = rl(THREE_FILES.replace("/rl/", "/rl/tiny/"))
    assert config.mode == "split" and config.orchestrator.client.base_url is None, "it has a server of its own"
    assert config.ckpt is not None and config.ckpt.interval == 25, "a run in several processes goes on from these"
    other = {"mode": None, "ckpt": None, "output_dir": Path("outputs/tiny-rl")}
    assert config.model_copy(update=other) == rl(f"@ {REVERSE_TEXT}/tiny.toml")


@pytest.mark.parametrize("role", ["trainer", "orchestrator"])
def test_a_file_of_the_tiny_run_starts_its_role_alone(role: str) -> None:
    """The keys that the roles must have equal stand in each file; so does where they meet."""
    file = {"trainer": "train", "orchestrator": "orch"}[role]
    cls = {"trainer": TrainerRole, "orchestrator": OrchestratorRole}[role]
    alone, whole = (
        parse(cls, ["@", f"{REVERSE_TEXT}/rl/tiny/{file}.toml"], role),
        rl(THREE_FILES.replace("/rl/", "/rl/tiny/")),
    )
    names = ("model", "max_steps", "seq_len", "seed", "precision", "output_dir", "transport_path", "ckpt", role)
    assert values(alone, *names) == values(whole, *names)


@pytest.mark.parametrize("folder", ["rl", "rl/tiny"])
def test_a_server_that_is_started_alone_takes_the_weights_of_the_run(folder: str) -> None:
    serve = parse(ServeConfig, ["@", f"{REVERSE_TEXT}/{folder}/infer.toml"], "inference")
    whole = rl(THREE_FILES.replace("/rl/", f"/{folder}/"))
    assert serve.weights_folder == transport_weights(whole.transport_path) and serve.model == ModelConfig(
        **whole.model.model_dump(exclude={"lora"})
    )
