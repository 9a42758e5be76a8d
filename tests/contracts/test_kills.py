"""Contract 2: SIGKILL at any moment, then --resume, ends in the bytes of the run that was never killed.

At chosen events, at random moments, and within the resume while it rolls back; what was rolled back is in superseded/.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import states
import trials
from recipes import KEEP_LAST, Recipe, chosen, side_by_side
from traps import At, Call, Op, Trap

pytestmark = pytest.mark.long

# In a step. The count is chosen so that there is something before it, and something after.
COMPUTE = {
    "sampling": Call("hone.inference.batch.sample_tokens", 40),
    "sampled": Call("hone.loops.colocated.EnginePolicy.sample", 5, "after"),
    "grading": Call("hone.loops.groups.grade_groups", 4),
    "packing": Call("hone.loops.steps.trainable", 4),
    "backward": Call("torch.Tensor.backward", 4),
    "gradient there": Call("torch.Tensor.backward", 6, "after"),
    "clipped": Call("torch.nn.utils.clip_grads_with_norm_", 4, "after"),
    "weights updated": Call("hone.trainer.optim.Optimizer._publish_masters", 6),
    "published": Call("hone.model.decoder.Decoder.refresh", 6, "after"),
    "ledger closed": Call("hone.loops.ledger.Ledger.close", 14, "after"),
    "evaluation": Call("hone.loops.parts.evaluate", 2),
    "last evaluation": Call("hone.loops.parts.evaluate", 3, "after"),
}


SFT = {name: COMPUTE[name] for name in ("backward", "weights updated")} | {
    "data": Call("hone.loops.sft.next_batch", 5),
    "validation": Call("hone.trainer.step.Trainer.evaluate", 2, "after"),
}
TELLING = ("write", "save", "rename", "mkdir", "remove", "fsync")
"""Kinds of operations, between two of which a kill leaves something else behind."""


def kills(ops: tuple[Op, ...]) -> list[Trap]:
    """In turn half through, before and after: at the first and the last operation of each kind on each kind of file."""
    found = [op for op in chosen(ops) if op.kind in TELLING and (op.kind, op.count > 1) != ("mkdir", True)]
    return [Trap(At(op.kind, op.path, op.count, ("half", "before", "after")[i % 3])) for i, op in enumerate(found)]


# While a resume from step 4 rolls back a run that came to step 7.
RESUME_EVENTS = {
    "plan unwritten": At("mkdir", "superseded/1", 2, "after"),
    "plan torn": At("write", "superseded/1/*rollback.json", 1, "half"),
    "plan written": At("rename", "superseded/1/rollback.json", 1, "after"),
    "some rollouts moved": At("rename", "superseded/1/rollouts/*", 2),
    "some tokens moved": At("rename", "superseded/1/tokens/*", 2),
    "evaluation moved": At("rename", "superseded/1/evals/*", 1, "after"),
    "weights moved": At("rename", "superseded/1/weights/*", 1, "after"),
    "checkpoint moved": At("rename", "superseded/1/checkpoints/*", 1, "after"),
    "lines copied": At("rename", "superseded/1/metrics.jsonl", 1, "after"),
    "lines torn": At("write", "*superseded/1/*timings.jsonl", 1, "half"),
    "lines removed": At("rename", "metrics.jsonl", 1, "after"),
    "hashes copied": At("rename", "superseded/1/hashes.jsonl", 1, "after"),
    "events not removed": At("rename", "events.jsonl"),
    "plan not done": At("rename", "superseded/1/rollback.json", 2),
    "resume unnoted": At("rename", "run.json"),
    "resume noted": At("rename", "run.json", 1, "after"),
    "event torn": At("write", "events.jsonl", 1, "half"),
    "config.toml": At("write", "*config.toml", 1, "half"),
    "first step again": At("write", "metrics.jsonl", 1, "half"),
}


def resume(recipe: Recipe, out: Path, log: Path, stopped: bool = False) -> None:
    before, was_done = states.contents(out), states.is_done(out)
    assert trials.run(recipe.argv(out, "--resume"), log) == 0, log.read_text()
    states.assert_ended_like(out, recipe.unbroken, stopped)
    if was_done:
        assert states.contents(out) == before
    else:
        states.assert_nothing_lost(before, out, KEEP_LAST)
    shown = [(event["kind"], event["step"]) for event in states.lines(out / "events.jsonl")]
    saved = [event for event in shown if event[0] in ("weights", "checkpoint")]
    assert len(saved) == len(set(saved)), f"told twice: {saved}"


@pytest.mark.parametrize("where", [At("rename", ".previous/*/config.toml"), At("rename", ".previous/*/run.json")])
def test_killed_while_an_earlier_run_is_moved_aside(where, rl, tmp_path):
    """The fresh start is given again, and both runs are there."""
    out, log = tmp_path / "run", tmp_path / "log"
    replace(rl, args=(*rl.args, "--seed", "4")).stop_late(out, log)
    earlier = states.contents(out)
    assert trials.run(rl.argv(out), log, Trap(where)) == trials.KILLED, log.read_text()
    assert trials.run(rl.argv(out), log) == 0, log.read_text()
    states.assert_ended_like(out, rl.unbroken)
    (previous,) = (out / ".previous").iterdir()
    assert states.contents(previous) == earlier


def killed_and_resumed(recipe: Recipe, trap: Trap, out: Path, log: Path) -> None:
    assert trials.run(recipe.argv(out), log, trap) == trials.KILLED, f"{trap}: {log.read_text()}"
    states.intact_checkpoints(out)
    resume(recipe, out, log)


@pytest.mark.parametrize(("kind", "event"), [*(("rl", event) for event in COMPUTE), *(("sft", event) for event in SFT)])
def test_killed_at_an_event(kind, event, request, tmp_path):
    trap = Trap((COMPUTE if kind == "rl" else SFT)[event])
    killed_and_resumed(request.getfixturevalue(kind), trap, tmp_path / "run", tmp_path / "log")


@pytest.mark.parametrize(
    ("kind", "part"), [*(("rl", part) for part in range(32)), *(("sft", part) for part in range(4))]
)
def test_killed_at_an_operation(kind, part, request, tmp_path):
    recipe = request.getfixturevalue(kind)
    met = kills(recipe.ops)[part :: 32 if kind == "rl" else 24]
    assert len(met) > 1
    side_by_side(lambda trap, out, log: killed_and_resumed(recipe, trap, out, log), met, tmp_path)


@pytest.mark.parametrize("event", RESUME_EVENTS)
def test_killed_again_while_it_resumes(event, rl, tmp_path):
    """Killed late, then while a resume from step 4 rolls back, then resumed from what is newest by then."""
    out, log = tmp_path / "run", tmp_path / "log"
    rl.stop_late(out, log)
    first = states.contents(out)
    back = rl.argv(out, "--resume", "--resume.step", "4")
    assert trials.run(back, log, Trap(RESUME_EVENTS[event])) == trials.KILLED, log.read_text()
    resume(rl, out, log)
    states.assert_nothing_lost(first, out, KEEP_LAST)


def killed_at_random(recipe: Recipe, argv: list[str], log: Path, rng: random.Random) -> bool:
    """Kill `argv` at a moment uniform over the unbroken run's duration. False if it was too fast and is done."""
    return trials.run_for(argv, log, rng.uniform(0, recipe.seconds)) == trials.KILLED


@pytest.mark.parametrize("seed", range(24))
def test_rl_killed_at_a_random_moment(seed, rl, cook, tmp_path):
    """Every third run is killed a second time, every sixth a third time; some compute in bf16, some have a pool."""
    recipe = {1: cook("pool", "fp32"), 3: cook("rl", "bf16_linear")}.get(seed % 4, rl)
    out, log, rng = tmp_path / "run", tmp_path / "log", random.Random(seed)
    while not killed_at_random(recipe, recipe.argv(out), log, rng):
        pass  # it had ended: a fresh start moves it aside
    for _ in range((seed % 3 == 0) + (seed % 6 == 0)):
        killed_at_random(recipe, recipe.argv(out, "--resume"), log, rng)
    resume(recipe, out, log)


@pytest.mark.parametrize("signums", [(15,), (2,), (2, 2), (15, 9)])
@pytest.mark.parametrize("seed", range(3))
def test_stopped_at_a_random_moment(seed, signums, rl, tmp_path):
    """By SIGTERM, by Ctrl-C once or twice, by SIGTERM and then SIGKILL."""
    out, log = tmp_path / "run", tmp_path / "log"
    code = trials.run_for(rl.argv(out), log, random.Random(seed).uniform(0, rl.seconds), *signums)
    assert code in (0, {15: 143, 2: 130}[signums[0]], -9 if 9 in signums else 0), f"{code}\n{log.read_text()}"
    assert "Traceback" not in log.read_text(), log.read_text()
    resume(rl, out, log, stopped=True)


BRANCH_EVENTS = {
    "run.json": At("rename", "run.json", 1, "after"),
    "log copied": At("rename", "metrics.jsonl", 1, "after"),
    "rollouts copied": At("rename", "rollouts/step_000002.parquet", 1, "after"),
    "tokens copied": At("rename", "tokens/step_000002.parquet", 1, "after"),
    "weights copied": At("rename", "weights/step_4", 1, "after"),
    "checkpoint torn": At("write", "checkpoints/*/optimizer.safetensors", 1, "half"),
    "checkpoint copied": At("rename", "checkpoints/step_4", 1, "after"),
    "run.json noted": At("rename", "run.json", 2, "after"),
    "training": At("write", "metrics.jsonl", 2, "half"),
}


@pytest.mark.parametrize("event", BRANCH_EVENTS)
def test_killed_in_a_run_from_the_checkpoint_of_another(event, rl, tmp_path):
    """The same command again begins again, and ends like the other run; that one is left as it is."""
    source, out, log = tmp_path / "source", tmp_path / "run", tmp_path / "log"
    rl.stop_late(source, log)
    before = states.everything(source)
    branch = rl.argv(out, "--resume.dir", str(source), "--resume.step", "4")
    assert trials.run(branch, log, Trap(BRANCH_EVENTS[event])) == trials.KILLED, log.read_text()
    assert trials.run(branch, log) == 0, log.read_text()
    states.assert_ended_like(out, rl.unbroken)
    assert states.everything(source) == before
