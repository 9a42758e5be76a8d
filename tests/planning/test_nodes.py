"""The seconds of a step on a cluster, against what can be said by hand."""

from __future__ import annotations

import json

import pytest

from hone.cli import main
from hone.planning.nodes import NODES, Parts, step_seconds

PART_OF = {"sampling": "sample", "grading": "grade", "training": "train", "weights": "weights"}
PARTS = Parts(sample=4.0, grade=1.0, train=3.0, weights=2.0)


def test_in_lock_step_the_parts_follow_each_other():
    assert step_seconds(PARTS, 0) == pytest.approx(10)


def test_a_version_behind_sampling_and_training_go_on_together():
    # Step N is sampled from version N - 1, so two steps are on their way: each takes 10 s, in 5 s one ends.
    assert step_seconds(PARTS, 1) == pytest.approx(5)


@pytest.mark.parametrize(
    ("parts", "seconds"),
    [(Parts(9, 1, 2, 1), 10), (Parts(1, 0, 7, 1), 7), (Parts(1, 0, 2, 9), 9)],
    ids=["sampling", "training", "weights"],
)
def test_far_behind_the_slowest_part_sets_the_pace(parts, seconds):
    assert step_seconds(parts, 8) == pytest.approx(seconds)


def test_the_command_shows_what_1_to_64_nodes_would_do(capsys):
    assert main(["plan", "--model.name", "hone/tiny", "--on", "h100", "--cluster", "--gbit", "8", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    rows = plan["nodes"]
    assert [row["nodes"] for row in rows] == [1, 2, 4, 8, 16, 32, 64]
    one, usual = rows[0], plan["seconds"]["usual"]
    assert one["sample"] == pytest.approx(usual["sample"]) and one["grade"] == usual["grade"]
    assert one["train"] == pytest.approx(usual["train"] + usual["other"])
    assert one["weights"] == pytest.approx(4 * plan["parameters"] / 1e9, rel=0.05), "fp32, at 8 Gbit/s"
    for row in rows:
        assert row["step"] == pytest.approx(row["sample"] + row["grade"] + row["train"] + row["weights"])
        assert row["weights"] == pytest.approx(row["nodes"] * one["weights"])
        assert row["sample"] <= one["sample"] and row[PART_OF[row["longest"]]] == max(row[p] for p in PART_OF.values())


def test_the_table_names_all_parts_and_the_last_line_the_flags_of_the_plan(capsys):
    assert main(["plan", "--model.name", "hone/tiny", "--on", "h100", "--cluster", "--gbit", "8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (head,) = [number for number, line in enumerate(lines) if line.split()[:1] == ["nodes"]]
    assert {"step", *PART_OF, "longest"} <= {*lines[head].split()}
    assert [int(line.split()[0]) for line in lines[head + 1 :][: len(NODES)]] == list(NODES)
    assert lines[-1] == "Start it: `hone rl` with the same files and flags, without --on, --gbit."
