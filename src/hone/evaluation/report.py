"""An evaluation in words and tables: coloured on a terminal, aligned plain text elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hone.environments.parsers import message_text
from hone.evaluation.intervals import Interval
from hone.evaluation.result import EvalResult, EvalSample
from hone.terminal import printable
from hone.types import Message, Outcome

OUTCOME_STYLES = {
    "correct": "green",
    "wrong": "yellow",
    "truncated": "magenta",
    "unparsable": "red",
    "grader_error": "bold red",
    "grader_timeout": "bold red",
}
_LONGEST = 2000
"""Characters of a message to show; `results.jsonl` has the whole message."""
_MESSAGES = 8
"""Messages to show at each end of a conversation."""


def show_sample(console: Console, sample: EvalSample) -> None:
    """Show one completion, its prompt, and its reward parts."""
    _title(console, f"One completion (example {sample.index})")
    messages, score = sample.trajectory.messages, sample.score
    left = len(messages) - 2 * _MESSAGES
    shown: list[Padding | Text] = [Padding(_message(one), (0, 0, 0, 2), expand=False) for one in messages]
    if left > 0:
        shown[_MESSAGES:-_MESSAGES] = [Text(f"  … {left} more messages", "dim")]
    for part in shown:
        console.print(part)
    outcome = Text(str(score.outcome), OUTCOME_STYLES[score.outcome])
    if score.outcome.is_failure:  # why grading failed is shown once, below the result
        console.print(Text("  reward: none, ").append(outcome))
        return
    parts = " + ".join(f"{name} {value:.3g} x {score.weights[name]:g}" for name, value in score.components.items())
    console.print(Text(f"  reward {score.reward:.3f} = {parts}, ").append(outcome))
    console.print(Text(f"  {printable(score.detail)}", "dim"))


def show_result(console: Console, result: EvalResult) -> None:
    examples = len(result.by_example)
    _title(console, f"{result.label or result.env_id}: {examples} examples x {result.rollouts_per_example} completions")
    rewards = result.rewards
    rows = []
    if len(rewards):
        rows.append(("reward", f"{rewards.mean():.3f} ± {rewards.std():.3f}", _interval(result.reward_interval)))
    if result.correct is not None:
        rows.append(("correct", f"{result.correct:.3f}", _interval(result.correct_interval)))
    rows += [(f"pass@{k}", f"{value:.3f}", "") for k, value in result.pass_at.items() if k > 1]
    if len(rewards):
        _table(console, ("", "mean ± std", "95 % interval of the mean"), rows)
        _table(console, ("component", "weight", "mean", "std", "completions"), _component_rows(result))
    if result.samples:
        _table(console, ("outcome", "completions", "share"), _outcome_rows(result))
        _show_cost(console, result)
    if result.failures:
        text = f"{len(result.failures)} completions could not be graded and are in no average. The first:"
        console.print(Text(text, "bold red"))
        console.print(Text(printable(result.failures[0].score.detail)))
    if result.failed:
        total = len(result.samples) + len(result.failed)
        console.print(Text(f"{len(result.failed)} of {total} rollouts failed and are in no average:", "bold red"))
        reasons = Counter(failure.reason for failure in result.failed).most_common()
        for reason, count in reasons[:5]:
            console.print(Text(f"  {count} x {reason}"), soft_wrap=True)
        if len(reasons) > 5:
            console.print(Text(f"  … and {len(reasons) - 5} other reasons"))


def _message(message: Message) -> Text:
    text = message_text(message)
    lines = [text] if text else []
    for call in message.get("tool_calls") or []:
        name, arguments = (call["function"][key] for key in ("name", "arguments"))
        if "<tool_call>" not in text and arguments not in text:
            lines.append(f"calls {name or 'a tool'}({arguments})")
    shown = "\n".join(lines)
    if len(shown) > _LONGEST:
        shown = f"{shown[:_LONGEST]} … ({len(shown) - _LONGEST} more characters)"
    role = " ".join(str(message[key]) for key in ("role", "name") if message.get(key))
    return Text(f"{role}: ", "bold").append(Text(printable(shown), ""))


def _component_rows(result: EvalResult) -> list[tuple[str, ...]]:
    scores = [s.score for s in result.samples if s.graded]
    rows = []
    for name, weight in (scores[0].weights if scores else {}).items():
        values = np.array([score.components[name] for score in scores if name in score.components])
        mean, std = (f"{values.mean():.3f}", f"{values.std():.3f}") if len(values) else ("", "")
        rows.append((name, f"{weight:g}", mean, std, str(len(values))))
    return rows


def _outcome_rows(result: EvalResult) -> Iterable[tuple[str | Text, ...]]:
    outcomes = [s.score.outcome for s in result.samples]
    for outcome in sorted(Outcome, key=lambda o: o.is_failure):
        count = outcomes.count(outcome)
        if count or not outcome.is_failure:
            share = f"{100 * count / len(outcomes):.1f} %"
            yield Text(str(outcome), OUTCOME_STYLES[outcome] if count else "dim"), str(count), share


def _show_cost(console: Console, result: EvalResult) -> None:
    seconds, count = result.seconds, len(result.samples)
    cut = f"{sum(s.trajectory.truncated for s in result.samples)} of {count} cut by the limit"
    lengths_text, rate = f"not counted by the server ({cut})", ""
    if tokens := result.tokens():
        prompts, lengths = (np.array(counts) for counts in tokens)
        completion = f"completion {lengths.mean():.1f} (longest {lengths.max()}, {cut})"
        lengths_text = f"prompt {prompts.mean():.1f} on average, {completion}"
        speed = lengths.sum() / seconds["sample"] if seconds["sample"] > 0 else 0.0
        rate = f" ({speed:,.0f} completion tokens/s)"
    lines = [f"tokens      {lengths_text}"]
    if turns := result.turns():
        lines.append(f"turns       {np.mean(turns):.1f} on average, at most {max(turns)}")
    lines.append(f"time        sampling {seconds['sample']:.1f} s{rate}, grading {seconds['grade']:.2f} s")
    if result.requests:
        waits, requests = result.requests.summary(), result.requests
        lines.append(
            f"requests    median {waits['median']:.2f} s, 95 % within {waits['p95']:.2f} s, longest {waits['max']:.2f} "
            f"s; {requests.retries} retries, up to {requests.concurrency} at a time"
        )
    for line in lines:
        console.print(Text(line), soft_wrap=True)


def _interval(interval: Interval | None) -> str:
    if interval is None:
        return "undefined: one example"
    if interval.high - interval.low < 1e-9:
        return "undefined: all examples agree"
    return f"{interval.low:.3f} to {interval.high:.3f}"


def _title(console: Console, text: str) -> None:
    console.print(Text(f"\n{text}", "bold"))


def _table(console: Console, header: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim", show_edge=False)
    table.add_column(header[0], no_wrap=True, min_width=12)
    for name in header[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    console.print(table)
    console.print()
