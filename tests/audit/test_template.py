"""Chat templates with one defect each: what the audit finds, by which conversation, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from chat_templates import CHATML, LLAMA3, QWEN3, QWEN3_THINKING
from test_bridge import SPECIALS

from hone.audit.report import Finding, Report
from hone.audit.template import audit_template
from hone.errors import UserError
from hone.model.files import write_json
from hone.model.tokenizer import IM_END, build_tiny_tokenizer, save_tokenizer

pytestmark = pytest.mark.audit

CONTENT = "message['content']"
OPENING = "{{- '<|im_start|>assistant\\n' }}"
HEAD = "{%- for message in messages %}"
QWEN3_FINDINGS = {"think-stripping": {"user"}, "adds-thought": {"empty"}}


def folder_of(folder: Path, template: str | None, family: str = "", eos: str = IM_END) -> str:
    """A model's folder: the tiny tokenizer with a family's special tokens, and this template."""
    save_tokenizer(folder)
    tokenizer = build_tiny_tokenizer()
    tokenizer.add_special_tokens(list(SPECIALS.get(family, ())))
    tokenizer.save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "tokenizer_config.json").read_text()) | {"eos_token": eos, "bos_token": "<s>"}
    write_json(folder / "tokenizer_config.json", config | {"chat_template": template})
    return str(folder)


def found(report: Report) -> dict[str, set[str]]:
    """What showed each finding."""
    whats: dict[str, set[str]] = {}
    for one in report.findings:
        whats.setdefault(one.name, set()).update(one.what)
    return whats


def finding(report: Report, name: str) -> Finding:
    return next(one for one in report.findings if one.name == name)


def text(one: Finding, what: str) -> list[str]:
    """What the messages of the conversation say that shows it."""
    shown = next(shown for shown in one.shown if shown.outcome == what)
    return [message["content"] for message in shown.completion if isinstance(message, dict)]


def variant(old: str, new: str, template: str = CHATML) -> str:
    assert old in template
    return template.replace(old, new)


# The template, a family's special tokens, the end of text, the verdict, and all that is found.
FAMILIES = {
    "tiny": (None, "", IM_END, "pass", {}),
    "chatml": (CHATML, "", IM_END, "pass", {}),
    "chatml base": (CHATML, "", "<|endoftext|>", "warn", {"eos-differs": {"<|im_end|>"}}),
    "qwen3": (QWEN3, "", IM_END, "fail", QWEN3_FINDINGS),
    "llama 3": (
        *(LLAMA3, "llama", "<|eot_id|>", "note"),
        {
            "refuses": {"two calls in one turn"},
            "strips-text": {"user", "system", "assistant"},
        },
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_families(name: str, tmp_path: Path) -> None:
    template, family, eos, verdict, expected = FAMILIES[name]
    model = "hone/tiny" if template is None else folder_of(tmp_path, template, family, eos)
    report = audit_template(model)
    assert (found(report), report.verdict) == (expected, verdict)


NO_SYSTEM = "{%- if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{%- endif %}"
# A template with one defect, the verdict, the finding that it is there for, and what the shortest conversation says.
DEFECTS = {
    "no generation prompt": (
        *(variant(OPENING, ""), "fail", "no-generation-prompt"),
        {"opening": ["a", "b"]},
    ),
    "trims": (
        *(variant(CONTENT, CONTENT + " | trim"), "note", "strips-text"),
        {role: None for role in ("user", "system", "assistant")},
    ),
    "lower-cases": (
        *(variant(CONTENT, CONTENT + " | lower"), "fail", "changes-text"),
        {"assistant": ["what is blue?", "Mixed Case"]},
    ),
    "split token": (
        *(CHATML.replace("<|im_end|>", "<|turn_end|>"), "fail", "split-token"),
        {"<|turn_end|>": ["a", "b"]},
    ),
    "drops thoughts": (
        *(variant(CONTENT, f"({CONTENT}.split('</think>')[-1] if message.role == 'assistant' else {CONTENT})"), "fail"),
        *("think-stripping", {"answer": ["what is blue?", "<think>\nlook up\n</think>\n\nthe sky."]}),
    ),
    "loses the system message": (
        variant(HEAD, HEAD + "{%- if message['role'] != 'system' %}").replace(
            "{%- endfor %}", "{%- endif %}{%- endfor %}"
        ),
        *("fail", "changes-text", {"system": ["be brief.", "what is blue?"]}),
    ),
    "sorts by role": (
        *(
            variant(HEAD, "{%- for message in messages | sort(attribute='role', reverse=true) %}"),
            "fail",
            "changes-text",
        ),
        {"user": ["be brief.", "what is blue?"]},
    ),
    "no end of turn": (
        "{% for m in messages %}{{ m.content }}|{% endfor %}",
        *("fail", "no-stop-token", {"answer": ["a", "b"]}),
    ),
    "ends before calls": (
        variant(
            "{%- for tool_call in message.tool_calls or [] %}",
            "{%- for tool_call in message.tool_calls or [] %}{{- '<|im_end|>' }}",
            QWEN3,
        ),
        *("fail", "stop-inside", {"calls": ["what is blue?", ""]}),
    ),
    "opens thoughts sometimes": (
        variant(OPENING, OPENING + "{%- if messages|length > 1 %}{{- '<think>\\n' }}{%- endif %}"),
        *("fail", "rewrites-prompt", {"answer": None}),
    ),
    "opens what it does not write": (
        variant(OPENING, OPENING + "{{- '<think>\\n' }}"),
        *("fail", "unusable", {}),
    ),
    "forgets": (
        variant(HEAD, "{%- for message in messages[-3:] %}"),
        *("fail", "changes-text", {"user": None}),
    ),
    "shouts earlier answers": (
        variant(CONTENT, f"({CONTENT} if loop.last or message.role != 'assistant' else {CONTENT} | upper)"),
        *("fail", "rewrites-history", {"user": None}),
    ),
    "no system role": (
        NO_SYSTEM + CHATML,
        *("warn", "refuses", {"a system message": ["be brief.", "what is blue?"]}),
    ),
    "calls of another form": (variant("<tool_call>", "<call>", QWEN3), "fail", "tools-unread", {"calls": None}),
    "calls that are not read": (
        variant('"arguments": \' }}', '"args": \' }}', QWEN3),
        *("fail", "tool-calls", {"any": ["what is blue?", ""]}),
    ),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_defects(name: str, tmp_path: Path) -> None:
    template, verdict, kind, whats = DEFECTS[name]
    report = audit_template(folder_of(tmp_path, template))
    assert report.verdict == verdict, found(report)
    assert set(whats) <= found(report).get(kind, set()), found(report)
    assert (kind in report.names()) == (verdict == "fail" and kind != "tools-unread")
    for what, messages in whats.items():
        assert messages is None or text(finding(report, kind), what) == messages
    sound = audit_template(folder_of(tmp_path / "sound", CHATML))
    assert not set(whats) & found(sound).get(kind, set())


def test_qwen3_takes_out_thoughts_and_its_thinking_template_opens_one(tmp_path: Path) -> None:
    one = finding(audit_template(folder_of(tmp_path, QWEN3)), "think-stripping")
    assert text(one, "user") == ["what is blue?", "<think>\nlook up\n</think>\n\nthe sky.", "and what is green?"]
    thinking = audit_template(folder_of(tmp_path / "thinking", QWEN3_THINKING))
    assert thinking.facts["opened_by_template"] == "<think>\n" and thinking.names() == {"think-stripping"}


def test_a_model_that_renderers_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hone.model import chat

    folder = Path(folder_of(tmp_path, CHATML))
    monkeypatch.setattr(chat, "resolve_model", lambda name: folder)
    report = audit_template("Qwen/Qwen3-0.6B")
    assert report.facts["renders"] == "renderers" and report.names() == {"think-stripping"}
    assert audit_template("Qwen/Qwen3-0.6B", chat_template=CHATML).facts["renders"] == "chat template"


def test_what_is_no_template_is_an_error_of_the_user(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, None)
    with pytest.raises(UserError, match="has no chat template"):
        audit_template(folder)
    with pytest.raises(UserError, match="not valid Jinja"):
        audit_template(folder, chat_template="{% for %}")
    with pytest.raises(UserError):
        audit_template(str(tmp_path / "nowhere"))
    refused = audit_template(folder, chat_template="{{ raise_exception('no users') }}")
    assert refused.names() == {"unusable"} and "no users" in refused.failures[0].shown[0].detail
