r"""Completions that deserve full marks: made by a template or function, or derived from the prompt.

    reference = "<answer>{answer}</answer>"            # a template of the example's columns
    def reference(answer, info): return f"ANSWER: {answer}"

Without a `reference`, an audit tries the templates of `forms`, and uses the first that the reward calls right.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from hone.environments.template import Template
from hone.errors import UserError
from hone.grading import accepted_names
from hone.types import Example

Reference = str | Callable[..., Any]
BARE = "{answer}"
_FORMS = ("<answer>{answer}</answer>", "ANSWER: {answer}", "\\boxed{{{answer}}}", "#### {answer}")
_PAIR = re.compile(r"<([A-Za-z]\w*)>.*?</\1>", re.DOTALL)
_THOUGHTS = ("think", "thinking", "reasoning", "scratchpad")


def reference_of(example: Example, reference: Reference) -> Any:
    """Return the completion that a template or a function makes of an example. UserError for an unknown column."""
    columns = {**example.info, "answer": example.info.get("answer", example.answer), "prompt": example.prompt}
    if isinstance(reference, str):
        return str(Template({"reference": reference}, "reference").row(columns, f"example {example.id}")["reference"])
    columns |= {"info": example.info, "example": example}
    try:
        names = accepted_names(reference, tuple(columns))
    except ValueError as error:
        raise UserError(f"reference asks for {str(error)!r}; the columns are {', '.join(sorted(columns))}") from None
    try:
        return reference(**{name: columns[name] for name in names})
    except Exception as error:
        raise UserError(f"reference raised {type(error).__name__}: {error} (example {example.id})") from error


def forms(example: Example) -> list[str]:
    """Return templates that state an answer: the forms that the prompt asks for, then bare and other usual forms."""
    text = "\n".join(str(message.get("content") or "") for message in example.prompt)
    tags = [tag for tag in _PAIR.findall(text) if tag.lower() not in _THOUGHTS]
    asked = [f"<{tag}>{{answer}}</{tag}>" for tag in tags]
    asked += [form for form in _FORMS if form.partition("{")[0] in text]
    return list(dict.fromkeys([*asked, BARE, *_FORMS]))
