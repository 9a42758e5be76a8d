r"""Completions that deserve full marks, for tasks without a `reference` method: by a template, a function, or derived.

    reference = "<answer>{answer}</answer>"            # a template of the example's columns
    def reference(answer, info): return f"ANSWER: {answer}"

Without either, an audit states the answer in the forms of `forms` and uses the first that the reward calls right.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from hone.environments.template import Template
from hone.errors import UserError
from hone.types import Example

Reference = str | Callable[..., Any]
BARE = "{answer}"
_FORMS = ("<answer>{answer}</answer>", "ANSWER: {answer}", "\\boxed{{{answer}}}", "#### {answer}")
_PAIR = re.compile(r"<([A-Za-z]\w*)>.*?</\1>", re.DOTALL)
_THOUGHTS = ("think", "thinking", "reasoning", "scratchpad")


def reference_of(example: Example, reference: Reference) -> Any:
    """Return the completion that a template or a function makes of an example.

    Columns are `answer`, `prompt`, `info`, `example` and the keys of `info`. Raises UserError for a column that is not
    there.
    """
    columns = {**example.info, "answer": example.info.get("answer", example.answer), "prompt": example.prompt}
    if isinstance(reference, str):
        return str(Template({"reference": reference}, "reference").row(columns, f"example {example.id}")["reference"])
    columns |= {"info": example.info, "example": example}
    parameters = inspect.signature(reference).parameters.values()
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = {p.name: p.default for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    if missing := [
        name for name, default in named.items() if name not in columns and default is inspect.Parameter.empty
    ]:
        raise UserError(f"reference takes {missing[0]!r}; the columns are {', '.join(sorted(columns))}")
    try:
        return reference(**{name: value for name, value in columns.items() if takes_all or name in named})
    except Exception as error:
        raise UserError(f"reference raised {type(error).__name__}: {error} (example {example.id})") from error


def forms(example: Example) -> list[str]:
    """Return templates that state an answer: the forms that the prompt asks for, the bare answer, other usual forms."""
    text = "\n".join(str(message.get("content") or "") for message in example.prompt)
    tags = [tag for tag in _PAIR.findall(text) if tag.lower() not in _THOUGHTS]
    asked = [f"<{tag}>{{answer}}</{tag}>" for tag in tags]
    asked += [form for form in _FORMS if form.partition("{")[0] in text]
    if "\\boxed" in text:
        asked.append(_FORMS[2])
    return list(dict.fromkeys([*asked, BARE, *_FORMS]))
