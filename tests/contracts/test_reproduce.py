"""Contracts 4 and 7 for recorded runs. Changing what is compared here is a decision to report, not a fix.

A run under other numerics is "not comparable", never damaged or different; a resume of it is refused with the version
that can go on. None of the commands writes into a run.
"""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import pytest
import tampering
import trials
from traps import Call, Trap

from hone.cli import main
from hone.loops import machine
from hone.runs.provenance import NUMERICS


def certificate(run: Path) -> dict:
    return json.loads(run.with_name(f"{run.name}.verify.json").read_text())


def chosen(run: Path) -> tuple:
    config = tomllib.loads((run / "config.toml").read_text())
    trainer = config["trainer"]
    own = trainer["micro_batch_tokens"], trainer["checkpointing"], trainer["head_cache_bytes"]
    return config["threads"], config["deterministic"], config["precision"], config["inference"]["kv_gib"], *own


def test_what_the_machine_decides_is_decided_once(rl, tmp_path, monkeypatch, capsys):
    run, log = tmp_path / "run", tmp_path / "log"
    kill = Trap(Call("hone.trainer.optim.Optimizer._publish_masters", 5))
    assert trials.run(rl.argv(run), log, kill) == trials.KILLED
    text = (run / "config.toml").read_text()
    assert chosen(run) == (1, True, "fp32", 4.0, 4096, "none", 512 * 2**20)
    monkeypatch.setattr(machine, "free_memory", lambda device: 2**20)
    monkeypatch.setattr(machine, "SMALL_MODEL", 0)
    monkeypatch.setattr(machine, "share_of_cores", lambda processes: 2)
    assert main(rl.argv(run, "--resume")) == 0 and capsys.readouterr().out.count("Warning: a step") == 1
    assert (run / "config.toml").read_text() == text
    assert main(["diff", str(rl.unbroken), str(run)]) == 0

    small = tmp_path / "small"
    assert main(rl.argv(small, "--max-steps", "2")) == 0
    assert chosen(small) == (2, True, "fp32", 4.0, 4096, "layer", 512 * 2**20)
    assert capsys.readouterr().out.count("Warning: a step takes about") == 1

    def asked(*_):
        raise AssertionError("this was decided when the run began")

    for name in ("free_memory", "default_threads"):
        monkeypatch.setattr(machine, name, asked)
    assert main(["verify", str(run), "--steps", "2"]) == 0
    assert main(["replay", str(small), "--output-dir", str(tmp_path / "replayed")]) == 0
    weights = [folder / "model.safetensors" for folder in (tmp_path / "replayed", small / "weights" / "step_2")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    monkeypatch.setattr(machine, "free_memory", lambda device: 2**40)  # a resume asks, only to warn
    assert main(rl.argv(small, "--resume", "--max-steps", "3")) == 0 and chosen(small)[:1] == (2,)
    assert "Warning: a step" not in capsys.readouterr().out


@pytest.mark.parametrize("numerics", [None, NUMERICS + 1])
def test_a_run_under_other_numerics_is_not_comparable(numerics, rl, tmp_path, capsys):
    run = shutil.copytree(rl.unbroken, tmp_path / "run")
    info = json.loads((run / "run.json").read_text())
    assert info.pop("numerics") == NUMERICS
    if numerics is not None:
        info["numerics"] = numerics
    (run / "run.json").write_text(json.dumps(info | {"versions": info["versions"] | {"hone-rl": "7.8.9"}}))
    before = tampering.snapshot(run)
    verdict = f"not comparable: made under numerics {numerics or 1}, this is {NUMERICS}"
    for argv in (["verify", str(run)], ["replay", str(run)]):
        assert main(argv) == 3 and verdict in capsys.readouterr().out
    assert certificate(run)["verdict"] == "not comparable" and not certificate(run)["steps"]
    assert main(["verify", str(run), "--steps", "0"]) == 0 and certificate(run)["verdict"] == "files only"
    assert main(["diff", str(rl.unbroken), str(run)]) == 3 and main(["diff", str(run), str(run)]) == 0
    capsys.readouterr()
    assert main(rl.argv(run, "--resume", "--allow-drift")) == 2
    assert main(rl.argv(tmp_path / "branch", "--resume.dir", str(run))) == 2
    refusal = capsys.readouterr().err
    assert refusal.count("Go on with hone 7.8.9, git revision ") == 2 and "--resume" in refusal
    assert tampering.snapshot(run) == before and not (tmp_path / "branch" / "run.json").exists()
    tampering.edit_rollouts(run, 5, lambda rows: rows[0].update(reward=0.75))
    assert main(["verify", str(run)]) == 1 and certificate(run)["verdict"] == "damaged"
