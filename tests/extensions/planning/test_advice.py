"""Each surprise is found where it is, and a healthy recipe has none."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from hone.config.parse import from_settings, parse
from hone.config.rl import RLConfig
from hone.extensions.planning.advice import missing
from hone.extensions.planning.arithmetic import Steps
from hone.extensions.planning.config import PlanConfig
from hone.extensions.planning.data import Facts, look_at
from hone.extensions.planning.devices import DEVICES, Device
from hone.extensions.planning.report import Plan, plan_of, short
from hone.inference.memory import GIB
from hone.model.config import DecoderConfig
from hone.model.shape import KNOWN, shape_of

ROOT = Path(__file__).parents[3]
SPLIT = "examples/reverse_text/rl"
CPU = Device("a CPU", "cpu", 16 * GIB, {"bf16": 4e11, "fp32": 1e11}, 3e10)
FACTS = Facts(pool=10_000, held_out=500, prompts=(40, 50), references=(30, 60, 90))
SET = ("--trainer.optim.state", "fp32", "--no-trainer.optim.offload")
EVAL = ("--orchestrator.eval.num-examples", "64")
LARGE = KNOWN["qwen2.5-1.5b"]
TINY = shape_of("hone/tiny")
SMALL = {"tiny": "hone/tiny", "smollm2": "HuggingFaceTB/SmolLM2-135M-Instruct"}
"""What the recipes for a CPU train, by a word in their names."""


def lines() -> list[str]:
    """What the examples are started with."""
    tomls = ROOT.glob("examples/**/*.toml")
    files = sorted(path for path in tomls if "rl" not in path.parts and path.name != "pyproject.toml")
    of_roles = [
        " ".join(f"--{role} @ {folder}/{name}.toml" for role, name in [("trainer", "train"), ("orchestrator", "orch")])
        for folder in (SPLIT, f"{SPLIT}/tiny")
    ]
    return [f"@ {path.relative_to(ROOT)}" for path in files] + of_roles


@pytest.mark.parametrize("line", lines())
def test_the_examples_have_none(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with the model that a recipe for a CPU starts from, in place of the folder that its SFT would have made."""
    monkeypatch.chdir(ROOT)
    small = next((model for word, model in SMALL.items() if word in line), None)
    config = parse(PlanConfig, shlex.split(line), "hone plan").run
    if small is not None:
        config = config.model_copy(update={"model": config.model.model_copy(update={"name": small})})
    plan = plan_of(config, CPU if small else DEVICES["h200"], look_at(config), here=False)
    assert plan.fits and plan.surprises == []
    assert plan.usual is not None and plan.worst is not None and plan.usual.total <= plan.worst.total


def test_several_tasks_are_looked_at_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)

    def of(*ids: str) -> RLConfig:
        settings = {"orchestrator.envs": [{"id": id} for id in ids], "orchestrator.eval.num_examples": 64}
        return from_settings(RLConfig, None, {"model.name": "hone/tiny"} | settings)

    one, other, both = (look_at(of(*ids)) for ids in (["reverse-text"], ["char-count"], ["reverse-text", "char-count"]))
    assert both.pool == (one.pool or 0) + (other.pool or 0) and both.prompts == one.prompts + other.prompts
    assert both.references == one.references + other.references and not both.notes
    assert Steps.of(of("a", "b")).evaluated == 2 * Steps.of(of("a")).evaluated > 0
    assert list(missing(of("reverse-text", "no-such-task"))) == ["task"] and missing(of("reverse-text")) == {}


def plan(*argv: str, facts: Facts = FACTS, shape: DecoderConfig = LARGE, device: Device = DEVICES["h200"]) -> Plan:
    return plan_of(parse(RLConfig, list(argv), "rl"), device, facts, here=False, shape=shape)


def found(*argv: str, facts: Facts = FACTS) -> list[str]:
    return plan(*argv, facts=facts).surprises


def test_a_plain_run_has_none() -> None:
    assert found(*EVAL, "--ckpt.interval", "50") == []


SETTINGS = {
    "--orchestrator.rollouts-per-example 2 --orchestrator.batch-size 64": "rollouts_per_example = 2: most groups",
    "--orchestrator.batch-size 16 --orchestrator.rollouts-per-example 16": "counts completions, not prompts",
    "--orchestrator.sampling.max-tokens 64": "max_tokens = 64 cuts 33 % of the task's own reference answers",
    "--seq-len 120 --orchestrator.sampling.max-tokens 100": "leaves 70 tokens for a completion after the longest",
    "--seq-len 40000": "seq_len = 40000 exceeds the model's context of 32768 tokens",
    "--trainer.scheduler.warmup-steps 60": "warmup_steps = 60 is more than half of the run's 100 steps",
    "--trainer.optim.lr 3e-4": "trainer.optim.lr = 0.0003 tends to destroy a model of 1,544M parameters: 1e-6",
    "--trainer.optim.lr 1e-8": "trainer.optim.lr = 1e-08 will hardly move",
    "--trainer.optim.lr 3e-3 --model.lora.rank 8": "1,544M parameters: 1e-5 with LoRA is usual in RL",
    "--orchestrator.sampling.temperature 0.2": "temperature = 0.2 hardly explores",
    "--orchestrator.eval.interval 200": "eval.interval = 200 is beyond max_steps = 100",
    "--orchestrator.eval.num-examples 900": "num_examples = 900, but only 500 examples are held out",
    "--ckpt.interval 500": "ckpt.interval = 500 is beyond max_steps = 100: nothing happens before the end",
    "--budget.hours 0.01": "budget.hours = 0.01 ends the run after about",
    "--budget.tokens 1000": "budget.tokens = 1,000 ends the run after about 0 of 100 steps",
}


@pytest.mark.parametrize("line", SETTINGS)
def test_a_setting_that_surprises_gets_one_sentence(line: str) -> None:
    surprises = found(*EVAL, "--ckpt.interval", "50", *shlex.split(line))
    assert [text for text in surprises if SETTINGS[line] in text], surprises
    assert len(surprises) == 1 and "\n" not in surprises[0]


def test_no_evaluation_and_no_checkpoints_in_a_long_run() -> None:
    texts = found("--max-steps", "100000", facts=replace(FACTS, pool=10**6))
    assert texts[0].startswith("no evaluation: the reward on training prompts will be the only measure")
    assert texts[1].startswith("no checkpoints in a run of about") and "--ckpt.interval" in texts[1]


def test_a_full_disk_is_seen_beforehand(tmp_path: Path) -> None:
    config = parse(RLConfig, [*EVAL, "--ckpt.interval", "1", "--output-dir", str(tmp_path / "new")], "rl")
    texts = plan_of(config, DEVICES["h200"], FACTS, here=True, shape=KNOWN["llama-3.1-70b"]).surprises
    assert [text for text in texts if "the disk has" in text and "--ckpt.keep-last 2" in text]


def test_the_start_leaves_a_step_that_does_not_fit_to_the_warning_before() -> None:
    for flags, gib, phase, said in (
        ("--inference.kv-gib 0.5", 7, "training", False),
        ("--inference.kv-gib 20", 17, "sampling", True),
    ):
        found = plan(
            *EVAL, *flags.split(), facts=Facts(), shape=KNOWN["qwen3-0.6b"], device=replace(CPU, memory=gib * GIB)
        )
        assert not found.fits and found.memory is not None and found.memory.peak == phase
        assert ("which is too little" in short(found)[0]) is said
