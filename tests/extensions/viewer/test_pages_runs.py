"""The pages of runs and curves: what they say is what the runs' files say, whatever those hold."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from made_runs import client
from run_folders import make_run, write_lines

HOSTILE = """it's "<script>alert(1)</script>" & co"""
OUTCOMES = ("correct", "wrong", "unparsable", "truncated", "grader_error", "grader_timeout")


def step(number: int, **more: Any) -> dict[str, Any]:
    shares = dict.fromkeys(OUTCOMES, 0.0) | {"correct": number / 10, "wrong": 1 - number / 10}
    line = {"step": number, "reward/mean": number / 10, "reward/exact/mean": 0.5, "reward/form/mean": 0.2}
    line |= {f"outcome/{name}": share for name, share in shares.items()}
    line |= {"completion/length/mean": 20.0 + number, "entropy": 1.0 - number / 10, "tokens/total": 100 * (number + 1)}
    return line | more


def evaluation(reward: float) -> dict[str, float]:
    return {
        "eval/t/reward/mean": reward,
        "eval/t/ci95/low": reward - 0.05,
        "eval/t/ci95/high": reward + 0.05,
        "eval/t/correct": reward / 2,
    }


def clock(number: int, **more: float) -> dict[str, Any]:
    seconds = {"time/sample": 1.0, "time/train": 2.0, "time/step": 4.0, "time/total": 4.0 * (number + 1)}
    return {"step": number, "tokens/s": 250.0} | seconds | more


def rl_run(folder: Path, **facts: Any) -> Path:
    run = make_run(folder, **({"reward_weights": {"exact": 1.0, "form": 0.5}, "steps": 0, "max_steps": 3} | facts))
    lines = [step(0, **evaluation(0.25)), step(1), step(2), {"step": 3, **evaluation(0.75)}]
    write_lines(run / "metrics.jsonl", lines)
    write_lines(
        run / "timings.jsonl", [clock(0), clock(1), clock(2), {"step": 3, "time/step": 1.0, "time/total": 13.0}]
    )
    return run


def charts_of(text: str) -> dict[str, Any]:
    (found,) = re.findall(r'<script type="application/json" id="charts">(.*?)</script>', text, re.DOTALL)
    return json.loads(found)


def cells(text: str, slug: str) -> list[str]:
    (row,) = re.findall(rf'<tr class="item"[^>]*data-slug="{re.escape(slug)}">(.*?)</tr>', text, re.DOTALL)
    found = re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)
    return [" ".join(unescape(re.sub(r"<[^>]*>", " ", cell)).split()) for cell in found]


def table_rows(text: str) -> list[list[str]]:
    rows = re.findall(r"<tr>(.*?)</tr>", text, re.DOTALL)
    return [
        [unescape(re.sub(r"<[^>]*>", "", cell)).strip() for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)]
        for row in rows
    ]


# The list of runs.


def test_the_list_says_how_each_run_stands(tmp_path: Path) -> None:
    rl_run(tmp_path / "a", usd=1.5, seconds=13.0)
    write_lines(
        tmp_path / "a" / "events.jsonl",
        [{"kind": "alarm", "step": 1, "name": "kl", "evidence": "far", "time": None}],
        "a",
    )
    make_run(tmp_path / "b", kind="sft", exact=False, inexact=[{"step": 2, "cause": "a grader"}])
    text = client(tmp_path).get("/").text
    assert cells(text, "a") == [
        "", "a rl · reverse-text", "done", "3 of 3", "reward 0.200", "0.250 → 0.750 95 %: 0.700 to 0.800", "38 %",
        "yes", "kl", "300", "0:13", "1.50", cells(text, "a")[-1],
    ]  # fmt: skip
    assert cells(text, "b")[1:8] == ["b sft · reverse-text", "done", "4 of 4", "loss 2.0000", "", "", "no"]
    assert ">USD</a>" in text and "unset" not in text
    assert text.count('<svg class="spark"') == 2 and 'title="no: from step 2 on, a grader"' in text


def with_settings(folder: Path, lr: float, tags: str = "", **facts: Any) -> Path:
    """A run with this learning rate, and tags as TOML has them."""
    run = rl_run(folder, **facts)
    with open(run / "config.toml", "a") as config:
        config.write(f"[trainer.optim]\nlr = {lr}\n" + (f"[wandb]\ntags = {tags}\n" if tags else ""))
    return run


def names(text: str) -> list[str]:
    return re.findall(r'<a class="open" href="[^"]*">([^<]*)</a>', text)


def test_settings_that_differ_become_columns(tmp_path: Path) -> None:
    for number, lr in enumerate((1e-3, 1e-5, 1e-3)):
        with_settings(tmp_path / f"r{number}", lr, started=f"2026-01-0{number + 1}T00:00:00+00:00")
    ask = client(tmp_path)
    text = ask.get("/").text
    assert re.findall(r'name="settings" value="([^"]*)"', text) == ["trainer.optim.lr"], "the seed is the same in all"
    assert names(text) == ["r2", "r1", "r0"]
    text = ask.get("/?settings=seed,trainer.optim.lr&sort=trainer.optim.lr").text
    assert [cells(text, slug)[2:4] for slug in ("r0", "r1", "r2")] == [["3", "0.001"], ["3", "1e-05"], ["3", "0.001"]]
    assert names(text) == ["r1", "r2", "r0"]
    assert 'href="?settings=seed%2Ctrainer.optim.lr&amp;sort=-trainer.optim.lr"' in text
    assert set(re.findall(r'value="([^"]*)" checked', text)) == {"seed", "trainer.optim.lr"}
    assert "No run here has the setting x.y" in ask.get("/?settings=x.y").text


def test_rows_are_chosen_by_words_and_tags_and_sorted(tmp_path: Path) -> None:
    with_settings(tmp_path / "one", 1e-3, '["base line", "short"]')
    with_settings(tmp_path / "two", 1e-3, '["short"]', usd=2.5)
    rl_run(tmp_path / "three", usd=10.0)
    ask = client(tmp_path)
    assert sorted(names(ask.get("/?q=short").text)) == ["one", "two"]
    text = ask.get("/?q=base+line").text
    assert names(text) == ["one"] and "1 of 3 runs" in text and 'href="?q=base+line&amp;sort=name"' in text
    assert 'href="?q=base+line"' in ask.get("/").text
    assert names(ask.get("/?q=RL+base").text) == ["one"]
    assert names(ask.get("/?sort=name").text) == ["one", "three", "two"]
    assert names(ask.get("/?sort=-usd").text)[:2] == ["three", "two"] and names(ask.get("/?sort=zzz").text)


# The overview.


def cards(text: str) -> list[list[str]]:
    found = re.findall(r'<div class="stat">(.*?)</div>', text, re.DOTALL)
    return [[part.strip() for part in re.split(r"<[^>]*>", one) if part.strip()] for one in found]


def test_the_overview_tells_before_and_after_with_intervals(tmp_path: Path) -> None:
    rl_run(tmp_path / "a", seconds=13.0)
    text = client(tmp_path).get("/run/a/").text
    rows = table_rows(text)
    assert ["held-out reward, t", "0.250", "0.750", "0.700 to 0.800", "versions 0 and 3"] in rows
    assert ["held out and correct, t", "12 %", "38 %", "", "versions 0 and 3"] in rows
    assert ["training reward", "0.000", "0.200", "", "steps 0 and 2"] in rows
    assert ["length, tokens", "20.0", "22.0", "", "steps 0 and 2"] in rows
    assert ">last</th>" in text and ">now</th>" not in text, "it is done"
    assert "Rewards: Student&#39;s t" in text
    assert "some/model by RL on reverse-text, seed 3" in text
    assert cards(text) == [
        ["held-out reward, t", "0.750", "before: 0.250, 95 %: 0.700 to 0.800"],
        ["held out and correct, t", "38 %", "before: 12 %"],
        ["steps", "3 of 3"],
        ["time", "0:13"],
        ["tokens trained on", "300"],
    ]
    assert "rl @ a.toml" in text and f"hone verify {tmp_path / 'a'} --steps 3" in text


def test_charts_are_of_what_the_run_measured(tmp_path: Path) -> None:
    rl_run(tmp_path / "a")
    page = charts_of(client(tmp_path).get("/run/a/").text)
    charts = {chart["id"]: chart for chart in page["charts"]}
    assert [(line["metric"], line["low"]) for line in charts["reward"]["lines"]] == [
        ("reward/mean", ""),
        ("eval/t/reward/mean", "eval/t/ci95/low"),
    ]
    assert [(line["label"], line["scale"]) for line in charts["components"]["lines"]] == [
        ("exact", 1.0),
        ("form × 0.5", 0.5),
    ]
    assert [line["color"] for line in charts["outcomes"]["lines"]] == list(OUTCOMES)
    phases = [(line["label"], line["color"]) for line in charts["timings"]["lines"]]
    assert phases == [("sample", "s1"), ("train", "s2")]
    assert charts["timings"]["whole"] == "time/step"
    assert not {"kl", "pool", "staleness", "turns"} & charts.keys()
    make_run(tmp_path / "empty", steps=0)
    assert "No step yet" in client(tmp_path).get("/run/empty/").text
    assert page["series"]["reward/mean"]["y"] == [0.0, 0.1, 0.2, None]
    assert page["series"]["eval/t/reward/mean"] == {"y": [0.25, None, None, 0.75]}
    assert page["x"] == {
        "step": [0, 1, 2, 3],
        "tokens": [0, 100, 200, 300],
        "hours": [pytest.approx(value / 3600) for value in (0, 4, 8, 12)],
    }


def test_alarms_and_events_are_marked(tmp_path: Path) -> None:
    run = rl_run(tmp_path / "a")
    alarm = {"kind": "alarm", "step": 1, "name": "kl", "evidence": HOSTILE, "advice": "less", "time": None}
    over = {"kind": "alarm_over", "step": 2, "name": "kl", "time": None}
    resume = {"kind": "resume", "step": 2, "time": "2026-01-02T03:04:05+00:00"}
    write_lines(run / "events.jsonl", [alarm, {"kind": "checkpoint", "step": 1, "time": None}, over, resume], "a")
    text = client(tmp_path).get("/run/a/").text
    markers = charts_of(text)["markers"]
    assert [(one["kind"], one["step"], one["until"]) for one in markers] == [("alarm", 1, 2), ("resume", 2, None)]
    assert markers[0]["text"] == f"kl: {HOSTILE}" and "<script>alert" not in text
    (run / "events.jsonl").write_text(json.dumps(alarm) + "\n")
    assert "<b>Alarm kl</b> since step 1; then: it&#39;s" in client(tmp_path).get("/run/a/").text


def test_an_sft_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", kind="sft", steps=3)
    write_lines(run / "metrics.jsonl", [{"step": 3, "val/loss": 1.25}], "a")
    text = client(tmp_path).get("/run/a/").text
    charts = {chart["id"]: chart for chart in charts_of(text)["charts"]}
    assert [line["metric"] for line in charts["loss"]["lines"]] == ["loss", "val/loss"]
    assert "outcomes" not in charts
    assert ["training loss, nats per token", "5.000", "3.000", "", "steps 0 and 2"] in table_rows(text)
    assert "some/model by SFT on reverse-text" in text
    assert not any(chart["opens"] for chart in charts.values()) and "A click on a point" not in text, (
        "it has no samples"
    )


def test_an_evaluation_has_its_own_columns_and_page(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", kind="eval", steps=0)
    numbers = {"metrics": {"eval/t/reward/mean": 0.5, "eval/t/correct": 0.25}, "seconds": {"sample": 2.0}}
    (run / "metadata.json").write_text(json.dumps(numbers))
    (run / "results.jsonl").write_text("")
    text = client(tmp_path).get("/").text
    assert cells(text, "a")[2:6] == ["done", "0.500", "25 %", "0:02"]
    assert "before → after" not in text and ">USD</a>" not in text and ">alarms</a>" not in text
    text = client(tmp_path).get("/run/a/").text
    assert ["correct", "25 %", "eval/t/correct"] in table_rows(text) and "plotly" not in text
    assert ["time", "2.00 s"] in cards(text) and '<span class="badge done">done</span>' in text
    make_run(tmp_path / "s", kind="sft")
    for slug in ("a", "s"):
        answer = client(tmp_path).get(f"/run/{slug}/change/0/1/")
        assert answer.status_code == 404 and f"{slug} has no samples of evaluations" in answer.text


# Curves.


def test_curves_are_those_that_the_address_names(tmp_path: Path) -> None:
    rl_run(tmp_path / "a")
    rl_run(tmp_path / "b,c")
    query = "runs=b%2Cc&runs=a,gone&metrics=entropy,eval/t/correct&x=tokens&smooth=9&log=1"
    text = client(tmp_path).get(f"/curves/?{query}").text
    page = charts_of(text)
    assert [run["slug"] for run in page["runs"]] == ["b,c", "a"]
    assert [chart["id"] for chart in page["charts"]] == ["entropy", "eval/t/correct"]
    assert page["numbers"]["a"]["series"]["entropy"]["y"][:3] == [1.0, 0.9, 0.8]
    checked = set(re.findall(r'name="(?:runs|metrics)" value="([^"]*)" checked', text))
    assert checked == {"a", "b,c", "entropy", "eval/t/correct"}
    assert ["a", "0.8", "0.375"] in table_rows(text)
    assert page["charts"][0]["unit"] == "nats per token" and '<span class="sub">share of completions</span>' in text
