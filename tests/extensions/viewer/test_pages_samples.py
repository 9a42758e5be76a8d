"""The pages of completions say what is in the files, and show what a model wrote as text, whatever it is."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest
from made_runs import client, encode, links_of, row, text_of, write_run

HOSTILE = [
    "<script>alert(1)</script>",
    "</textarea></pre></script><img src=x onerror=alert(1)>",
    "a\x00b\x1b[31mred\x07",
    "abc\u202edcba \u2066x\u2069",
    "{{ 7 * 7 }} {% raw %} ${7*7}",
    "'\" onmouseover=alert(1) x='",
    "\u2028\u2029<!-- -->]]>",
]


def right(text: str, **changes) -> dict:
    return row(text, reward=1.0, outcome="correct", components=[("format", 1.0), ("correctness", 1.0)], **changes)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    second = {"draw": 1, "group": 1, "example_id": "e1", "state": "filtered", "advantage": 0.0}
    first = [
        right("<answer>4</answer>", advantage=1.25),
        row("<answer>5</answer>", advantage=-0.75),
        row("no idea", reward=0.0, outcome="unparsable", **second),
        row("long " * 100, stop_reason="length", outcome="truncated", **second),
    ]
    write_run(tmp_path / "runs" / "odd 'n' <i>", {0: first, 2: [right("4!")], 9: [row(text) for text in HOSTILE]})
    return tmp_path / "runs"


RUN = "/run/odd%20%27n%27%20%3Ci%3E"


def test_a_step_is_shown_group_by_group(root: Path) -> None:
    page = client(root).get(f"{RUN}/step/0/")
    assert page.status_code == 200
    output = text_of(page.text)
    assert "4 completions" in output and "solved 1 of 2" in output and "solved 0 of 2" in output
    assert "reward 0.550 ± 0.450" in output and "reward 0.050 ± 0.050" in output
    assert "1.000 = format 1 × 0.1 + correctness 1 × 0.9 advantage +1.25" in output
    assert 'title="filtered: all rewards of its group are equal' in page.text
    assert (
        output.index("Group 0") < output.index("<answer>4</answer>") < output.index("Group 1") < output.index("no idea")
    )
    assert "expected: 4" in output and "What is 2 + 2?" in output
    assert links_of(f"{RUN}/step/0/", page.text, "next") == [f"{RUN}/step/2/"]
    assert not links_of(f"{RUN}/step/0/", page.text, "prev")
    assert "<i>" not in page.text.replace('<i class="dot', "") and "odd 'n' <i>" in html.unescape(page.text)


def test_filters_narrow_a_step(root: Path) -> None:
    ask = client(root)
    page = ask.get(f"{RUN}/step/0/?outcome=correct").text
    assert "1 of 4 shown" in text_of(page) and "no idea" not in page and 'id="r0"' in page
    assert "solved 1 of 2" in text_of(page), "of the whole group"
    assert 'id="r1"' in ask.get(f"{RUN}/step/0/?advantage=negative").text
    assert "No completion of this step is of this kind" in ask.get(f"{RUN}/step/0/?outcome=wrong&stop=length").text
    wrong = ask.get(f"{RUN}/step/0/?outcome=good")
    assert wrong.status_code == 400 and "outcome cannot be" in html.unescape(wrong.text)


def test_a_large_step_has_pages_that_keep_the_filters(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hone.extensions.viewer.samples.ON_A_PAGE", 1)
    ask = client(root)
    page = ask.get(f"{RUN}/step/0/?state=trained").text
    assert f"{RUN}/step/0/?state=trained&page=2" not in links_of(f"{RUN}/step/0/", page), "one group is trained on"
    page = ask.get(f"{RUN}/step/0/?stop=stop").text
    assert "no idea" not in page
    (second,) = {link for link in links_of(f"{RUN}/step/0/", page) if "page=2" in link}
    assert second == f"{RUN}/step/0/?stop=stop&page=2" and "no idea" in ask.get(second).text
    assert f"{RUN}/step/2/?stop=stop" in links_of(f"{RUN}/step/0/", page, "next")


def test_steps_and_completions_that_are_not_there(root: Path) -> None:
    ask = client(root)
    for path, sentence in {
        "step/1/": "no completions of step 1: the run has steps 0 to 9",
        "step/x/": "step is 'x', which is not a number: the run has steps 0 to 9",
        "sample/5/0/": "no completions of step 5",
        f"sample/0/{'9' * 30}/": f"row is '{'9' * 20}…', which is not a number",
    }.items():
        answer = ask.get(f"{RUN}/{path}")
        assert answer.status_code == 404 and sentence in html.unescape(answer.text), path
        assert f"{RUN}/" in links_of(f"{RUN}/{path}", answer.text), "the way back to the run"
    answer = ask.get(f"{RUN}/sample/0/77/")
    assert answer.status_code in (400, 404) and "no completion 77: completions are 0 to 3" in answer.text


def test_the_completions_beside_one_are_those_of_the_step_that_pass_the_filters(root: Path) -> None:
    ask = client(root)
    at = f"{RUN}/sample/0/"
    for path, before, after, place in (
        (f"{at}0/", [], [f"{at}1/"], "1 of 4"),
        (f"{at}2/", [f"{at}1/"], [f"{at}3/"], "3 of 4"),
        (f"{at}3/", [f"{at}2/"], [], "4 of 4"),
        (f"{at}0/?stop=stop&color=gap", [], [f"{at}1/?stop=stop&color=gap"], "1 of 3: stop"),
        (f"{at}2/?stop=stop&all=1", [f"{at}1/?stop=stop"], [], "3 of 3: stop"),
        (f"{at}1/?advantage=negative&outcome=wrong", [], [], "1 of 1: wrong, negative"),
    ):
        page = ask.get(path).text
        assert [links_of(path, page, rel) for rel in ("prev", "next")] == [before, after], path
        assert f" {place} " in text_of(page), path
    step = ask.get(f"{RUN}/step/0/?state=filtered").text
    assert f"{at}3/?state=filtered" in links_of(f"{RUN}/step/0/", step), "a list hands its filters on"
    assert ask.get(f"{at}0/?outcome=good").status_code == 400


@pytest.mark.parametrize("index", range(len(HOSTILE)))
def test_hostile_text_is_only_text(root: Path, index: int) -> None:
    ask = client(root)
    for path in ("step/9/", f"sample/9/{index}/", f"sample/9/{index}/?all=1", "search/?q="):
        answer = ask.get(f"{RUN}/{path}")
        assert answer.status_code == 200, path
        scripts = re.findall(r"<script\b[^>]*>", answer.text)
        assert all(' src="' in one or 'type="application/json"' in one for one in scripts), scripts
        assert not re.search(r"<img|onerror=alert\(1\)>|\son\w+=", re.sub(r">[^<]*<", "><", answer.text)), path
        assert not set(answer.text) & set("\x00\x1b\x07\u202e\u2066\u2069"), path
    shown = {2: r"a\x00b\x1b[31mred\x07", 3: r"abc\u202edcba \u2066x\u2069", 6: r"\u2028\u2029<!-- -->]]>"}
    for path in ("step/9/", f"sample/9/{index}/"):
        assert shown.get(index, HOSTILE[index]) in text_of(ask.get(f"{RUN}/{path}").text), "all of it can be read"


def spelled(parts: list[tuple[str, bool]]) -> tuple[list[list[int]], list[bool], list[int]]:
    """Ids of each text, and of all in a row, with a mask of those that were sampled."""
    ids = [encode(text) for text, _ in parts]
    mask = [sampled for (_, sampled), some in zip(parts, ids, strict=True) for _ in some]
    return ids, mask, [token for some in ids for token in some]


def test_a_conversation_is_laid_out_as_turns(tmp_path: Path) -> None:
    call = {"type": "function", "function": {"name": "multiply", "arguments": '{"a": 46, "b": "<b>60"}'}}
    messages = [
        {"role": "assistant", "content": "let me see", "tool_calls": [call, "torn"]},
        {"role": "tool", "name": "multiply", "content": "2760 <script>"},
        {"role": "assistant", "content": "2760"},
    ]
    ids, mask, flat = spelled([("user\n", False), ("let me see", True), ("TOOL", False), ("2760", True)])
    one = row("let me see\n\n2760", completion=json.dumps(messages), token_ids=flat, sampled_mask=mask)
    one |= {"logprobs": [-1.5 if m else 0.0 for m in mask], "versions": [3 if m else -1 for m in mask]}
    write_run(tmp_path / "runs" / "a", {0: [one, row("plain")]})
    page = client(tmp_path / "runs").get("/run/a/sample/0/0/").text
    output = text_of(page)
    assert "assistant sampled by the policy let me see calls multiply a 46 b <b>60 a call that cannot be read" in output
    assert "sampled by the policy let me see calls" in output and page.count(", logprob -1.5") == len(ids[1]) + len(
        ids[3]
    )
    assert (
        '<section class="turn other">\n<h3>tool <code>multiply</code></h3>\n<pre class="said">2760 &lt;script&gt;</pre>'
        in page
    )
    assert "TOOL" not in output and "3 (14 tokens)" in output
    write_run(tmp_path / "runs" / "a", {1: [row("let me see", completion=json.dumps(messages[:2] * 2))]})
    assert "the turns differ from the sampled turns" in client(tmp_path / "runs").get("/run/a/sample/1/0/").text


def test_search_shows_what_it_found_where(root: Path) -> None:
    ask = client(root)
    page = ask.get(f"{RUN}/search/?q=%22%3Canswer%3E4%22").text
    assert (
        'data-hits="1"' in page
        and "<mark>&lt;answer&gt;4</mark>&lt;/answer&gt;" in page
        and f"{RUN}/sample/0/0/" in links_of(f"{RUN}/search/", page)
    )
    assert 'value="&#34;&lt;answer&gt;4&#34;"' in page, "the words stay in their field"
    wrong = ask.get(f"{RUN}/search/?q=/(/&outcome=wrong")
    assert wrong.status_code == 200 and "is not a regular expression" in wrong.text and 'value="/(/"' in wrong.text
    assert "reward_min is 'x'" in html.unescape(ask.get(f"{RUN}/search/?reward_min=x").text)
    assert 'data-hits="0"' in ask.get(f"{RUN}/search/?q=%ED%A0%80").text


def test_a_component_that_is_no_number_breaks_no_page(tmp_path: Path) -> None:
    broken = row("x", reward=None, outcome="grader_error", components=[("ratio", float("nan"))])
    write_run(tmp_path / "a", {0: [broken]})
    assert client(tmp_path).get("/run/a/sample/0/0/").status_code == 200


def test_the_conversations_of_a_programs_rollout_are_shown_one_at_a_time(tmp_path: Path) -> None:
    ids = encode("Yes!")
    asked = encode("Other?")
    branch = {
        "token_ids": [*asked, *ids],
        "sampled_mask": [False] * len(asked) + [True] * len(ids),
        "logprobs": [0.0] * len(asked) + [-0.5] * len(ids),
        "versions": [-1] * len(asked) + [0] * len(ids),
        "stop_reason": "stop",
        "messages": [{"role": "user", "content": "Other?"}, {"role": "assistant", "content": "Yes!"}],
    }
    write_run(tmp_path / "runs" / "agent", {0: [right("first words", branches=json.dumps([branch])), right("alone")]})
    viewer = client(tmp_path / "runs")
    page = viewer.get("/run/agent/sample/0/0/")
    assert "the program had 2 conversations" in text_of(page.text) and "first words" in text_of(page.text)
    other = text_of(viewer.get("/run/agent/sample/0/0/?trajectory=1").text)
    assert "Other?" in other and "Yes!" in other and "first words" not in other
    assert f"{len(ids)} tokens, ended at a stop" in other
    assert "which share the advantage" not in text_of(viewer.get("/run/agent/sample/0/1/").text)
    assert "Reward of each call" not in other
    branch |= {"call_rewards": [1.25], "call_advantages": [1.75]}
    own = {"call_rewards": [0.5], "call_advantages": [-0.75]}
    rewarded = right("first words", branches=json.dumps([branch]), advantage=0.5, **own)
    write_run(tmp_path / "runs" / "calls", {0: [rewarded, right("alone")]})
    page, other = (text_of(viewer.get(f"/run/calls/sample/0/0/?trajectory={i}").text) for i in ("", "1"))
    for i, advantage in enumerate(("-0.75", "1.75")):
        titles = viewer.get(f"/run/calls/sample/0/0/?trajectory={i}").text
        assert set(re.findall(r"nats, advantage ([-.0-9]*)", titles)) == {advantage}
    assert "mean advantage of its calls +0.500" in page
    assert "Reward of each call: 0.5000." in page and "Reward of each call: 1.2500." in other
    assert "the program had 2 conversations:" in page
    missing = viewer.get("/run/agent/sample/0/0/?trajectory=2")
    assert missing.status_code in (400, 404) and "has no trajectory 2" in text_of(missing.text)
