"""A run whose completions, prompts and names try to be more than text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import viewer_run

from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.runs.writer import RunWriter
from hone.types import Group

NAME = "odd \"name\" <i> & 'so' 50%"
"""Of the run's folder."""
LETTERS = 200_000
SCRIPT = "<script>alert(document.title)</script>"
TEXTS = {
    "script": f"{SCRIPT}<img src=x onerror=alert(1)><a href='javascript:alert(2)'>here</a> <answer>1</answer>",
    "ends": "</pre></textarea></script></style></title>--><svg onload=alert(3)> {{ 7 * 7 }} <answer>2</answer>",
    "long": "0123456789" * (LETTERS // 10 - 1) + "the end is " + "here <answer>3</answer>",
    "odd": "bidi \u202egnorw\u202c nul \x00 escape \x1b[31m, 🙂 汉字 é, tab\tand\n\n\nlines <answer>4</answer>",
    "blank": "",
}
"""By what they try."""


def make(folder: Path, steps: int = 2) -> None:
    """Writes the run: at each step the first completions of the first groups are those texts."""
    fabric = viewer_run.Fabric(steps, 80, 0)
    words = ["--model.name", "hone/tiny", "--max-steps", str(steps), "--output-dir", str(folder), "--display", "none"]
    words += ["--orchestrator.env.id", "countdown", "--orchestrator.batch-size", "80"]
    words += ["--orchestrator.rollouts-per-example", "16"]
    with RunWriter.start(parse(RLConfig, words, "hone rl"), "rl", ["hone", "rl", SCRIPT]) as run:
        for step in range(steps):
            groups = fabric.groups(step)
            pairs = enumerate(zip(groups, TEXTS.values(), strict=True), step * len(groups))
            groups = [with_text(fabric, index, group, text) for index, (group, text) in pairs]
            viewer_run.write_step(run, fabric, step, groups)
            run.log_step(step, fabric.metrics(step, groups, 1000 * (step + 1)), viewer_run.times(step, 1000), "0" * 16)
        viewer_run.export(run, steps)


def with_text(fabric: viewer_run.Fabric, index: int, group: Group, text: str) -> Group:
    """The group of the problem with that number, its first completion that text, a token for each of its characters."""
    sampled = fabric.sentences.encode(text or " ")
    problem, first = fabric.problems[index % len(fabric.problems)], group.rollouts[0]
    changed = fabric.trajectory(problem, sampled, text, 0, 0, first.sample_id, "stop")
    score = replace(group.scores[0], detail=f"{SCRIPT} {group.scores[0].detail}")
    return replace(group, rollouts=[changed, *group.rollouts[1:]], scores=[score, *group.scores[1:]])
