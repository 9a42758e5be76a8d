"""Chat templates with one defect each: the audit says which."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from chat_templates import CHATML, LLAMA3, QWEN3, QWEN3_THINKING
from test_bridge import SPECIALS

from hone.errors import UserError
from hone.extensions.audit.template import audit_template
from hone.model.files import write_json
from hone.model.tokenizer import IM_END, build_tiny_tokenizer, save_tokenizer

pytestmark = pytest.mark.audit

CONTENT = "message['content']"
OPENING = "{{- '<|im_start|>assistant\\n' }}"


def folder_of(folder: Path, template: str | None, family: str = "", eos: str = IM_END) -> str:
    """A model's folder: the tiny tokenizer with a family's special tokens, and this template."""
    save_tokenizer(folder)
    tokenizer = build_tiny_tokenizer()
    tokenizer.add_special_tokens(list(SPECIALS.get(family, ())))
    tokenizer.save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "tokenizer_config.json").read_text()) | {"eos_token": eos, "bos_token": "<s>"}
    write_json(folder / "tokenizer_config.json", config | {"chat_template": template})
    return str(folder)


def variant(old: str, new: str, template: str = CHATML) -> str:
    assert old in template
    return template.replace(old, new)


SOUND = {
    "chatml": (CHATML, "", IM_END, ""),
    "qwen3": (QWEN3, "", IM_END, ""),
    "qwen3 thinking": (QWEN3_THINKING, "", IM_END, "<think>\n"),
    "llama 3": (LLAMA3, "llama", "<|eot_id|>", ""),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_templates_pass(name: str, tmp_path: Path) -> None:
    *made, opened = SOUND[name]
    report = audit_template(folder_of(tmp_path, *made))
    assert not report.findings and [check.name for check in report.checks] == ["round-trip"]
    assert report.facts["opened_by_template"] == opened


DEFECTS = {
    "no generation prompt": (variant(OPENING, ""), "is read back as 'assistant"),
    "lower-cases": (variant(CONTENT, CONTENT + " | lower"), "leaves out a part of the assistant's text"),
    "split token": (CHATML.replace("<|im_end|>", "<|turn_end|>"), r"read back as '.*<\|turn_end\|>"),
    "no end of turn": ("{% for m in messages %}{{ m.content }}|{% endfor %}", "read back as 'The sky.|'"),
    "shouts questions that are answered": (
        variant(CONTENT, f"({CONTENT} if loop.last or {CONTENT} == 'probe' else {CONTENT} | upper)"),
        "rewrites the conversation once the assistant has answered",
    ),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_template_that_does_not_make_the_round_trip_fails(name: str, tmp_path: Path) -> None:
    template, words = DEFECTS[name]
    report = audit_template(folder_of(tmp_path, template))
    assert report.names() == {"round-trip"}
    with pytest.raises(AssertionError, match=words):
        assert not report.failures, report.failures[0].title


def test_a_given_template_is_audited_in_place_of_the_models(tmp_path: Path) -> None:
    assert not audit_template("hone/tiny").findings
    assert audit_template("hone/tiny", DEFECTS["lower-cases"][0]).names() == {"round-trip"}
    for template, words in ((None, "has no chat template"), ("{% for %}", "not valid Jinja")):
        with pytest.raises(UserError, match=words):
            audit_template(folder_of(tmp_path, template))
