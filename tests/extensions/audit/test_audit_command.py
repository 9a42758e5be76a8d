"""`hone audit` on the command line, and the fast part of it before step 0 of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made import SAYS, rl

from hone.cli import main
from hone.runs import Run

pytestmark = pytest.mark.audit

TOOL_BONUS = """
from hone.environments import AnswerParser, Rubric, ToolEnv

PARSER = AnswerParser(lambda text: text.strip(" .*_").lower())


def look_up(word: str) -> str:
    '''Looks a word up.

    Args:
        word: The word.
    '''
    return f"{word}: no entry"


def correct(completion, answer):
    return float(PARSER.value(completion) == answer)


def tool_calls(completion):
    return float(sum(message["role"] == "tool" for message in completion))


class Words(ToolEnv):
    def reference(self, example):
        return PARSER.wrap(example.answer)


def load_environment(bonus: float = 1.0):
    rows = [{"question": f"What is the plural of {word}?", "answer": word + "s"} for word in ("cat", "dog", "hen")]
    rubric = Rubric([correct, tool_calls], [1, bonus], parser=PARSER)
    return Words(id="words", tools=[look_up], max_turns=6, dataset=rows, rubric=rubric)
"""


@pytest.fixture
def tasks(tmp_path, monkeypatch) -> Path:
    (tmp_path / "words.py").write_text(TOOL_BONUS)
    (tmp_path / "says.py").write_text(SAYS.replace("SECONDS", "0"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


BONUS = '{"call_bonus": 0.2}'


@pytest.mark.parametrize(
    ("words", "code", "name", "title"),
    [
        (["char-count"], 0, "", ""),
        (["words"], 1, "inversion", "5 calls of tools (tool_calls: 5.0) can beat a right answer (1.0)"),
        (["calculator", "-a", BONUS], 1, "inversion", "12 calls of tools (calls: 2.4) can beat a right answer (1.0)"),
        (["says", "-a", '{"broken": true}'], 1, "reference", "2 of 2 references"),
        (["words", "--allow.inversion", "calls are the point"], 0, "inversion", "5 calls of tools"),
    ],
)
def test_five_calls_of_a_tool_beat_a_right_answer(tasks, capsys, words, code, name, title):
    """The bonus of the published run, and the least of the study of bonuses; as JSON and as a page."""
    assert main(["audit", *words, "-n", "2", "--json", "--html", "page.html"]) == code
    report, page = json.loads(capsys.readouterr().out), (tasks / "page.html").read_text()
    assert (report["verdict"] == "fail", report["examples"]) == (code == 1, 2)
    assert not any(text in page for text in ("<answer>", "http://", "https://", "<script"))
    found = {
        f["name"]: f for check in report["checks"] for f in check["findings"] if f["verdict"] == "fail" or f["allowed"]
    }
    assert list(found) == ([name] if name else []) and (not name or title in found[name]["title"])
    if code == 0 and name:
        assert (found[name]["verdict"], found[name]["allowed"]) == ("note", "calls are the point")
    elif name == "reference":
        assert report["subject"] == 'says {"broken": true}' and "&lt;answer&gt;elppa&lt;/answer&gt;" in page
        assert found[name]["shown"][0]["completion"] in ("<answer>elppa</answer>", "<answer>revir</answer>")


def test_a_run_does_not_start_on_an_inversion(tasks, tiny_model_dir, capsys):
    assert rl(tiny_model_dir, task="words") == 2
    text = capsys.readouterr().err
    assert "the reward of words fails its audit: inversion: " in text and "(tool_calls: 5.0) can beat a right" in text
    assert "See it with: hone audit words" in text and "--no-audit" in text
    assert not Path("outputs").exists()


def test_what_the_audit_found_is_in_the_run(tasks, tiny_model_dir, capsys):
    fits = ("--orchestrator.sampling.max-tokens", "64")
    assert rl(tiny_model_dir, *fits, task="char-count") == 0
    first = Path("outputs/audit.json").read_bytes()
    report = json.loads(first)
    assert (report["subject"], report["part"], report["verdict"]) == ("char-count", "fast", "pass")
    assert [check["name"] for check in report["checks"]] == [
        "reference", "restylings", "exploits", "inversion", "instructions",
    ]  # fmt: skip
    assert [event["verdict"] for event in Run("outputs").events() if event["kind"] == "audit"] == ["pass"]
    assert rl(tiny_model_dir, *fits, "--output-dir", "again", task="char-count") == 0
    assert Path("again/audit.json").read_bytes() == first  # no clock in it
    capsys.readouterr()
    assert main(["runs", "show", "outputs"]) == 0
    assert "audit        nothing found, of " in capsys.readouterr().out


def test_a_page_is_not_put_into_a_run(tasks, tiny_model_dir, capsys):
    assert rl(tiny_model_dir, "--no-audit") == 0
    assert main(["audit", "says", "--html", "outputs/report.html"]) == 2
    assert "lies in the run" in capsys.readouterr().err
    assert main(["audit", "says", "--html", "outputs"]) == 2
