"""Whether the environment of a conversation tells the right answer to a model that has not found it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hone.audit.kinds import answer_of
from hone.audit.playing import Script, play_many
from hone.audit.probes import Prober, Subject
from hone.audit.report import Finding, Shown, Verdict
from hone.audit.trajectories import call_message, made_up, wrong_text
from hone.environments import Environment, MultiTurnEnv
from hone.environments.parsers import message_text

SUBJECTS = 3
SHORT = 2
"""Answers of no more characters stand in many texts by chance."""


def answers_told(prober: Prober) -> list[Finding]:
    """A finding if made-up calls, or wrong answers, are answered with the right one, word for word."""
    env = prober.env
    subjects = [subject for subject in prober.subjects if _hidden(subject)][:SUBJECTS]
    if not isinstance(env, MultiTurnEnv) or env.max_turns < 2 or not subjects:
        return []
    scripts = [(subject, script) for subject in subjects for script in _first_turns(env, subject, prober.subjects)]
    replies = play_many(env, [(subject.example, script) for subject, script in scripts])
    shown = []
    for (subject, _), reply in zip(scripts, replies, strict=True):
        begun = len(subject.example.prompt)
        said = [message for message in reply.messages[begun:] if message.get("role") != "assistant"]
        if any(_stands(answer_of(subject), message_text(message)) for message in said):
            messages = [dict(message) for message in reply.messages[begun:]]
            shown.append(Shown(subject.example.id, messages, "told", None, "no answer before the model has found it"))
    told = {one.example_id for one in shown}
    if 2 * len(told) < len(subjects) or len(told) < min(2, len(subjects)):
        return []
    return [
        Finding(
            "answer-told",
            Verdict.WARN,
            f"the environment tells the right answer, word for word, to a model that does not know it: in {len(told)} "
            f"of {len(subjects)} examples",
            "leave the answer out of what tools and env_response say, or end the conversation there",
            (),
            tuple(shown[:2]),
        )
    ]


def _hidden(subject: Subject) -> bool:
    """Whether the answer is of some length, and not in the prompt anyway."""
    answer = answer_of(subject)
    prompt = "\n".join(message_text(message) for message in subject.example.prompt)
    return len(answer) > SHORT and not _stands(answer, prompt)


def _first_turns(env: Environment, subject: Subject, subjects: Sequence[Subject]) -> list[Script]:
    """Conversations of a turn that knows nothing, and an empty one after it, so that the environment answers it."""
    last = {"role": "assistant", "content": ""}
    tools = [schema["function"] for schema in env.tool_schemas or []]
    turns = [call_message((tool["name"], made_up(tool.get("parameters") or {}))) for tool in tools]
    if not tools:
        wrong = wrong_text(subject, subjects)
        turns = [{"role": "assistant", "content": text} for text in ("", wrong) if text is not None]
    return [[turn, last] for turn in turns]


def _stands(answer: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", text) is not None
