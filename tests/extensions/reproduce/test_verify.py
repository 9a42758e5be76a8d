"""`hone verify`: what it finds in runs that are whole, copied, tampered with, or made on another machine."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import sys
from pathlib import Path

import pytest
import tampering
from readers import nobody_reads
from recorded import PARITY, Bench
from refusals import fails
from run_folders import held

from hone.cli import main
from hone.runs import Run, provenance
from hone.trainer.optim import Optimizer


@pytest.fixture
def verify(bench):
    """Calls `hone verify` in the bench's folder, on all steps; returns (exit code, certificate)."""

    def call(run: Path, *flags: str, cwd: Path = bench.folder) -> tuple[int, dict]:
        with contextlib.chdir(cwd):
            code = main(["verify", str(run), "--steps", "6", *flags])
        return code, json.loads(run.with_name(f"{run.name}.verify.json").read_text())

    return call


def test_a_run_of_several_ranks_is_done_again_on_its_completions_within_a_tolerance(copied, verify, capsys):
    config = (copied / "config.toml").read_text()
    (copied / "config.toml").write_text(config.replace("micro_batch_tokens = 4096", "micro_batch_tokens = 50"))
    assert verify(copied)[0] == 1, "it does round otherwise"
    info = json.loads((copied / "run.json").read_text())
    (copied / "run.json").write_text(json.dumps(info | {"ranks": 2}))
    capsys.readouterr()
    code, certificate = verify(copied)
    printed = capsys.readouterr().out
    assert (code, certificate["verdict"]) == (0, "verified"), printed
    assert "and 6 steps came out equal from their recorded completions, up to 1e-05" in printed
    assert "training counts as equal up to a relative difference of 1e-05" in printed
    shutil.rmtree(copied / "checkpoints")  # they know the logs
    tampering.edit_metrics(copied, 1, "loss", 1.0, fit_hashes=True)
    code, certificate = verify(copied)
    assert (code, certificate["verdict"]) == (1, "differs")
    assert "step 1, metrics: loss, beyond 1e-05 of its size" in capsys.readouterr().out


def test_the_certificate_is_written_though_nobody_reads_what_is_printed(copied, verify):
    with nobody_reads():
        code, certificate = verify(copied)
    assert code == 141 and certificate["verdict"] == "verified" and len(certificate["steps"]) == 6


def test_a_run_is_verified_and_certified(rl_run, verify, capsys):
    before = tampering.snapshot(rl_run)
    code, certificate = verify(rl_run, "--seed", "7")
    assert (code, certificate["format"], certificate["verdict"]) == (0, "hone-verify-1", "verified")
    assert tampering.snapshot(rl_run) == before
    assert [check["step"] for check in certificate["steps"]] == [0, 1, 2, 3, 4, 5]
    hashes = [line["weights"] for line in Run(rl_run).hashes()]
    assert [check["weights"] for check in certificate["steps"]] == hashes[1:]
    assert certificate["run"]["id"] == Run(rl_run).info["id"] and certificate["choice"]["seed"] == 7
    markers = {f"{kind}/step_{n}/COMPLETE" for kind in ("checkpoints", "weights") for n in (2, 4, 6)}
    assert certificate["sha256"].keys() == {"run.json", "config.toml", "hashes.jsonl", "metrics.jsonl"} | markers
    evaluation = certificate["evaluation"]
    assert (evaluation["step"], evaluation["equal"], evaluation["weights"]) == (6, True, hashes[6])
    assert certificate["files"] == {
        **{"lines of metrics": 7, "files of rollouts": 6, "files of evaluations": 3},
        **{"checkpoints": 3, "weights": 3},
    }
    assert certificate["machine"]["sources"] == Run(rl_run).info["sources"] and certificate["incomparable"] == []
    printed = capsys.readouterr().out
    equal = "6 steps and the evaluation at the end came out equal"
    assert f"verdict       verified: all files fit their hashes, and {equal}" in printed


def make_correct(rows: list[dict]) -> None:
    row = next(row for row in rows if row["reward"] == 0.0)
    row.update(reward=1.0, components=[("parity", 1.0)], outcome="correct")


STEP_4 = Path("checkpoints/step_4")
ROLLOUTS_3, EVALS_3 = "rollouts/step_000003.parquet", "evals/step_000003.jsonl"
TAMPERINGS = {
    "rollouts": (lambda run: tampering.edit_rollouts(run, 3, make_correct), [f"{ROLLOUTS_3}: has changed"]),
    "rollouts and their hash": (
        lambda run: tampering.edit_rollouts(run, 3, make_correct, fit_hashes=True),
        ["hashes.jsonl: its first"],  # as checkpoint 4 has it
    ),
    "rollouts gone": (lambda run: (run / ROLLOUTS_3).unlink(), [f"{ROLLOUTS_3}: is missing"]),
    "a line of the hashes": (
        lambda run: (run / "hashes.jsonl").write_text((run / "hashes.jsonl").read_text().split("\n", 1)[1]),
        ["hashes.jsonl: begins with step 1 instead of step 0"],
    ),
    "an evaluation": (
        lambda run: tampering.edit_evaluation(run, 3, lambda rows: rows[1].update(outcome="edited")),
        [f"{EVALS_3}: has changed since it was written (SHA-256 differs)"],
    ),
    "an evaluation that was not": (
        lambda run: shutil.copy(run / EVALS_3, run / "evals/step_000004.jsonl"),
        ["evals/step_000004.jsonl: does not belong to the run (hashes.jsonl has no hash of this step)"],
    ),
    "an evaluation after the end": (
        lambda run: shutil.copy(run / EVALS_3, run / "evals/step_000007.jsonl"),
        ["evals/step_000007.jsonl: has no hash in hashes.jsonl"],
    ),
    "metrics": (
        lambda run: tampering.edit_metrics(run, 2, "reward/mean", 0.9),
        ["metrics.jsonl: the line of step 2 has changed"],
    ),
    "metrics and their hash": (
        lambda run: tampering.edit_metrics(run, 2, "loss", 0.9, fit_hashes=True),
        ["metrics.jsonl: its first", "hashes.jsonl: its first"],  # as checkpoint 4 remembers them
    ),
    "metrics no json": (
        lambda run: (run / "metrics.jsonl").write_text((run / "metrics.jsonl").read_text().replace('{"step": 1,', "x")),
        ["metrics.jsonl: line 2 is not the record of a step", "metrics.jsonl: the line of step 1 is missing"],
    ),
    "checkpoint": (
        lambda run: tampering.edit_tensor(run / STEP_4 / "model.safetensors", "embed"),
        ["checkpoints/step_4/model.safetensors: has changed since it was written"],
    ),
    "checkpoint and its marker": (
        lambda run: tampering.edit_tensor(run / STEP_4 / "model.safetensors", "embed", fit_marker=True),
        ["checkpoints/step_4/model.safetensors: its weights have the fingerprint"],
    ),
    "checkpoint without marker": (
        lambda run: (run / STEP_4 / "COMPLETE").unlink(),
        ["checkpoints/step_4: has no readable file COMPLETE"],
    ),
    "checkpoint with an empty marker": (
        lambda run: (run / STEP_4 / "COMPLETE").write_text('{"files": {}}'),
        [
            "checkpoints/step_4: has a file COMPLETE that lists no file",
            *(f"checkpoints/step_4/{name}: was added" for name in ("model.safetensors", "optimizer.safetensors")),
            "checkpoints/step_4/state.json: was added",
        ],
    ),
    "weights of a version that was never reached": (
        lambda run: shutil.copytree(run / "weights" / "step_6", run / "weights" / "step_9"),
        ["weights/step_9: hashes.jsonl has no version 9: it ends with 6"],
    ),
    "weights and their marker": (
        lambda run: tampering.edit_tensor(run / "weights/step_6/model.safetensors", "model.norm.weight", True),
        ["weights/step_6/model.safetensors: its weights have the fingerprint"],
    ),
}


@pytest.mark.parametrize("what", TAMPERINGS)
def test_tampering_is_named_by_its_file(what, copied, verify, capsys):
    change, expected = TAMPERINGS[what]
    change(copied)
    before = tampering.snapshot(copied)
    code, certificate = verify(copied)
    assert tampering.snapshot(copied) == before
    assert (code, certificate["verdict"]) == (1, "damaged")
    damages = [f"{damage['file']}: {damage['problem']}" for damage in certificate["damaged"]]
    assert len(damages) == len(expected)
    printed = capsys.readouterr().out
    for damage, beginning in zip(damages, expected, strict=True):
        assert damage.startswith(beginning) and f" {damage}\n" in printed


def test_tampering_that_fits_every_hash_is_found_by_executing_the_step(copied, verify, capsys):
    shutil.rmtree(copied / "checkpoints" / "step_6")  # it remembers hashes.jsonl
    tampering.edit_rollouts(copied, 5, make_correct, fit_hashes=True)
    tampering.fit_advantages_and_metrics(copied, 5)
    code, certificate = verify(copied, "--steps", "0")
    assert (code, certificate["verdict"]) == (0, "files only")
    assert "so completions, scores or weights may be made up" in capsys.readouterr().out
    code, certificate = verify(copied)
    assert (code, certificate["verdict"], certificate["damaged"]) == (1, "differs", [])
    difference = certificate["steps"][-1]["difference"]
    assert (difference["step"], difference["quantity"]) == (5, "rewards")
    assert difference["what"].startswith("component parity of sample 5-1") and difference["first"] == "1.0"
    assert "verdict       differs: executed again, step 5, rewards: component parity of sample 5-1" in (
        capsys.readouterr().out
    )


def perturb(monkeypatch) -> None:
    """Make updates that come out a little different, as on another processor."""
    original = Optimizer.step
    monkeypatch.setattr(Optimizer, "step", lambda self, lr: original(self, lr * (1 + 1e-6)))


def test_elsewhere_a_difference_is_not_comparable_and_an_equal_step_is_verified(rl_run, verify, monkeypatch, capsys):
    for name, other in {
        "hardware": provenance.hardware() | {"cpu": "Another CPU"},
        "versions": provenance.versions() | {"torch": "99.0"},
        "threads": 7,
        "variables": provenance.variables() | {"MKL_CBWR": "COMPATIBLE"},
        "code": "f" * 64,
    }.items():
        monkeypatch.setattr(provenance, name, lambda other=other: other)
    code, certificate = verify(rl_run, "--steps", "1")
    assert (code, certificate["verdict"]) == (0, "verified") and len(certificate["incomparable"]) == 5
    perturb(monkeypatch)
    code, certificate = verify(rl_run)
    assert (code, certificate["verdict"]) == (3, "not comparable")
    reasons = " ".join(certificate["incomparable"])
    assert all(f"{name} " in reasons for name in ("cpu", "torch", "threads", "MKL_CBWR none", "hone's code"))
    printed = capsys.readouterr().out
    assert "verdict       not comparable: executed again, step 0, weights:" in printed and "(here 7)" in printed


def truncate(path: Path, lines: int) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-lines]))


@pytest.fixture
def killed(copied) -> Path:
    """The run as if it had been killed just after version 6 was saved: it has no hash of it, and no last evaluation."""
    truncate(copied / "hashes.jsonl", 1)
    truncate(copied / "metrics.jsonl", 1)
    (copied / "evals" / "step_000006.jsonl").unlink()
    (copied / "run.json").write_text((copied / "run.json").read_text().replace('"done"', '"running"'))
    return copied


def test_what_a_killed_run_had_not_hashed_is_always_executed_again(killed, verify, capsys):
    for seed in range(4):
        code, certificate = verify(killed, "--steps", "1", "--seed", str(seed))
        assert (code, certificate["verdict"]) == (0, "verified") and certificate["evaluation"] is None
        assert certificate["steps"][-1]["step"] == 5
        if len(certificate["steps"]) > 1:
            break
    assert "; and 5, which have no hash yet" in capsys.readouterr().out
    truncate(killed / "hashes.jsonl", 1)  # killed between the metrics of step 5 and their hash
    shutil.rmtree(killed / "checkpoints" / "step_6")
    shutil.rmtree(killed / "weights" / "step_6")
    tampering.edit_metrics(killed, 5, "loss", 0.99)
    code, certificate = verify(killed, "--steps", "1", "--seed", str(seed))
    assert (code, certificate["verdict"]) == (1, "differs")
    assert certificate["steps"][-1]["difference"]["what"] == "loss"


def test_hashes_that_are_gone_are_missed(copied, verify):
    (copied / "hashes.jsonl").unlink()
    shutil.rmtree(copied / "checkpoints")  # they remember it
    code, certificate = verify(copied)
    assert code == 1 and certificate["damaged"] == [{"file": "hashes.jsonl", "problem": "is missing"}]
    (copied / "hashes.jsonl").touch()
    code, certificate = verify(copied)
    assert code == 1 and certificate["damaged"][0] == {
        "file": "hashes.jsonl",
        "problem": "is empty, but the run is done, after 6 steps",
    }


@pytest.mark.parametrize("saved", [["weights"], ["checkpoints", "weights"]])
def test_saved_weights_that_a_killed_run_had_not_hashed_are_named(saved, killed, verify, capsys):
    for kind in {"checkpoints", "weights"} - set(saved):
        shutil.rmtree(killed / kind / "step_6")
    for kind in saved:
        folder = killed / kind / "step_6"
        shutil.copy(killed / kind / "step_4" / "model.safetensors", folder)
        tampering.fit_complete(folder)
    code, certificate = verify(killed, "--steps", "1")
    assert (code, certificate["verdict"]) == (1, "damaged")
    (damage,) = certificate["damaged"]
    assert damage["file"] == f"{saved[0]}/step_6/model.safetensors"
    assert damage["problem"].startswith("its weights differ from the result of step 5: they and their")
    assert f"{saved[0]}/step_6/model.safetensors: its weights" in capsys.readouterr().out


def test_what_is_no_model_but_fits_its_marker_is_damage(copied, verify):
    (copied / STEP_4 / "model.safetensors").write_bytes(b"no model")
    tampering.fit_complete(copied / STEP_4)
    (copied / "weights" / "step_2" / "model.safetensors").unlink()
    tampering.fit_complete(copied / "weights" / "step_2")
    (copied / "checkpoints" / "step_6" / "state.json").write_text('{"ledger": 3, "logs": {"hashes.jsonl": 1}}')
    tampering.fit_complete(copied / "checkpoints" / "step_6")
    code, certificate = verify(copied)
    assert code == 1 and [damage["file"] for damage in certificate["damaged"]] == [
        "checkpoints/step_4/model.safetensors",
        "weights/step_2/model.safetensors",
        "checkpoints/step_6/state.json",
    ]


def test_a_line_that_tells_of_no_update_is_damage(copied, verify):
    shutil.rmtree(copied / "checkpoints")
    line = tampering.edit_line(copied / "metrics.jsonl", 3, lambda line: line.pop("lr"))
    tampering.edit_hashes(copied, 3, metrics=hashlib.sha256(line.encode()).hexdigest())
    (damage,) = verify(copied)[1]["damaged"]
    assert damage["problem"] == "the line of step 3 has no update, though the run went on after it"


def test_the_last_evaluation_is_done_again_whatever_steps_are_chosen(copied, verify, capsys):
    run, name = copied, "canary/gap/mean"
    tampering.edit_metrics(run, 6, name, 0.99, fit_hashes=True)
    code, certificate = verify(run, "--steps", "1")
    assert (code, certificate["verdict"], len(certificate["steps"])) == (1, "differs", 1)
    difference = certificate["evaluation"]["difference"]
    assert (difference["step"], difference["what"], difference["first"]) == (6, name, "0.99")
    assert certificate["evaluation"]["from"] == "checkpoint step_6"
    assert (
        f"verdict       differs: executed again, step 6, metrics: {name} is 0.99 in the run" in capsys.readouterr().out
    )

    truncate(run / "metrics.jsonl", 1)  # it was never there
    tampering.edit_hashes(run, 6, metrics=None)
    code, certificate = verify(run, "--steps", "1")
    assert (code, certificate["verdict"]) == (1, "differs")
    assert certificate["evaluation"]["difference"]["first"] == "nothing"


def test_what_can_not_be_verified_says_why(rl_run, tmp_path, capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "parity", raising=False)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not Path(path, "parity.py").exists()])
    with contextlib.chdir(tmp_path):
        fails(capsys, main(["verify", "nowhere"]), "there is no run nowhere")
        run = shutil.copytree(rl_run, tmp_path / "copied")
        fails(capsys, main(["verify", "copied"]), "again needs the run's task at its recorded place", "no environment")
        info = json.loads((run / "run.json").read_text()) | {"kind": "eval"}
        (run / "run.json").write_text(json.dumps(info))
        fails(capsys, main(["verify", "copied"]), "a run of `hone eval`, which has no steps")


def test_a_run_in_the_middle_of_an_interrupted_resume_is_told(copied, capsys):
    place = copied / "superseded" / "1"
    place.mkdir(parents=True)
    (place / "rollback.json").write_text('{"step": 4, "done": false}\n')
    (copied / "rollouts" / "step_000005.parquet").rename(place / "step_000005.parquet")
    command = f"hone rl @ {copied / 'config.toml'} --resume"
    for argv in (["verify", str(copied)], ["replay", str(copied)], ["diff", str(copied), str(copied)]):
        fails(capsys, main(argv), "in the middle of an interrupted resume: finish it with", command)
    assert not copied.with_name("copied.verify.json").exists()
    assert main(["runs", "show", str(copied)]) == 0
    assert f"To finish the resume that was interrupted:\n  {command}" in capsys.readouterr().out


def test_a_run_that_is_being_written_is_left_alone(copied, capsys):
    with held(copied):
        for command in ("verify", "replay"):
            fails(capsys, main([command, str(copied)]), "is being written by a process", "hone runs attach")
    assert not copied.with_name("copied.verify.json").exists()


def test_without_model_and_checkpoints_only_the_files_are_checked(copied, tmp_path, verify, capsys):
    (tmp_path / "environments").mkdir()
    (tmp_path / "environments" / "parity.py").write_text(PARITY)
    shutil.rmtree(copied / "checkpoints")
    code, certificate = verify(copied, cwd=tmp_path)
    assert (code, certificate["verdict"]) == (3, "not comparable")
    assert "no step can be executed again: its initial model model can't be loaded (" in capsys.readouterr().out


def test_a_drifted_resume_is_verified_from_there_on(bench: Bench, tmp_path, verify):
    run = bench.rl("drifted", "--max-steps", "4", "--ckpt.interval", "3")
    changed = "--max-steps 5 --ckpt.interval 3 --trainer.optim.lr 2e-3 --orchestrator.batch-size 12 --resume.step 3"
    bench.rl("drifted", *changed.split(), "--orchestrator.advantage.scale", "group_std", "--allow-drift")
    code, certificate = verify(run)
    assert (code, certificate["verdict"]) == (0, "verified")
    assert [check["step"] for check in certificate["steps"]] == [3, 4]
    assert certificate["notes"][-1].startswith(
        "steps 0 to 2 can't be executed again: at step 3 the run was resumed with --allow"
    )
