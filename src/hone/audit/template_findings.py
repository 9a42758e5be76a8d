"""The words for what an audit of a chat template finds, and how bad each is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hone.audit.report import Finding, Shown, Verdict, worst
from hone.audit.template_subject import Problem

FAIL, WARN, NOTE = Verdict.FAIL, Verdict.WARN, Verdict.NOTE
OTHER = "give another template with model.chat_template"
MOST_SHOWN = 6


@dataclass(frozen=True)
class Kind:
    """A finding's usual verdict, its title (`{what}`: what showed it), what should have been, and what to do."""

    verdict: Verdict
    title: str
    expected: str
    remedy: str = ""


KINDS = {
    "refuses": Kind(
        NOTE,
        "the template refuses: {what}",
        "the conversation is written",
        "keep to conversations that it takes, or " + OTHER,
    ),
    "crashes": Kind(
        FAIL, "rendering fails with {what}", "the conversation is written, or refused with a reason", OTHER
    ),
    "loses-text": Kind(FAIL, "what a message says is not written ({what})", "the text stands in the prompt", OTHER),
    "reorders": Kind(FAIL, "messages are written in another order ({what})", "messages keep their order", OTHER),
    "changes-text": Kind(
        WARN,
        "what a message says is changed ({what})",
        "the text is written as it is",
        "take the change out of the template; rows of SFT whose answers it changes are refused",
    ),
    "strips-text": Kind(NOTE, "white space around a text is taken away ({what})", "the text is written as it is", ""),
    "evaluates": Kind(
        FAIL,
        "signs in a message are evaluated, not written ({what})",
        "a text is data, whatever signs it holds",
        "take format() and replace() of contents out of the template",
    ),
    "think-tags": Kind(
        WARN,
        "thoughts with stray <think> tags are written otherwise than they were said ({what})",
        "the text is written as it is",
        "RL trains on what was sampled; leave such rows out of SFT",
    ),
    "think-stripping": Kind(
        FAIL,
        "thoughts of earlier turns are taken out ({what})",
        "what was said before stays as it was sampled",
        "give a template that keeps them with model.chat_template, or use tasks that it allows",
    ),
    "rewrites-prompt": Kind(
        FAIL,
        "a finished turn does not continue its prompt ({what})",
        "the prompt is how the finished turn begins",
        "give a template that only appends with model.chat_template",
    ),
    "adds-thought": Kind(
        NOTE,
        "an answer without a thought gets an empty one when it is written last",
        "the answer follows the opening of its turn",
        "SFT teaches the empty thought, RL samples from a prompt without it: train on rows that think if you want any",
    ),
    "no-generation-prompt": Kind(
        FAIL,
        "the prompt does not open the assistant's turn: the model has to write the opening itself",
        "with add_generation_prompt the prompt ends where the assistant begins to speak",
        "write the opening under `if add_generation_prompt`, or " + OTHER,
    ),
    "generation-prompt": Kind(
        WARN,
        "add_generation_prompt changes what stands before the opening",
        "the opening is appended and nothing else differs",
        OTHER,
    ),
    "opens-differently": Kind(
        FAIL,
        "the template opens a thought for the model after some messages only ({what})",
        "each turn is opened alike",
        "open the same after every message, or " + OTHER,
    ),
    "always-opens": Kind(
        WARN,
        "something follows the end of a finished turn",
        "without add_generation_prompt nothing but white space follows",
        "write the opening under `if add_generation_prompt` alone",
    ),
    "no-stop-token": Kind(
        FAIL,
        "the template writes no token at which an assistant's turn ends",
        "a turn ends with one special token",
        "write the end-of-turn token after the assistant's text",
    ),
    "split-token": Kind(
        FAIL,
        "the template writes {what}, which the tokenizer splits into several tokens or does not know",
        "each special token is one id",
        "add the token to the tokenizer (and train its embedding), or give the template of this tokenizer",
    ),
    "eos-differs": Kind(
        WARN,
        "turns end with {what}, which the model's files do not name as an end",
        "eos_token or generation_config.json names the token that ends a turn",
        "add its id to eos_token_id in generation_config.json: hone stops at it anyway, other engines do not",
    ),
    "stop-inside": Kind(
        FAIL,
        "a token that ends generation stands inside of a turn ({what})",
        "only the turn's end has it",
        OTHER,
    ),
    "rewrites-history": Kind(
        FAIL,
        "earlier turns are rewritten once an answer follows ({what})",
        "what was said before stays as it was sampled",
        "give a template that only appends with model.chat_template; tasks of one turn are not affected",
    ),
    "moves-white-space": Kind(
        WARN,
        "white space moves once an answer follows ({what})",
        "what was said before stays as it was sampled",
        "RL trains on what was sampled; other software that writes the conversation anew sees other tokens",
    ),
    "injection": Kind(
        WARN,
        "text of a message becomes control tokens: {what}",
        "a text is data, whatever signs it holds",
        "take these texts out of prompts and of what tools say",
    ),
    "tokenizer-changes-text": Kind(
        WARN,
        "the tokenizer changes text ({what})",
        "text comes back from its ids as it was",
        "compare answers in the same form: what graders read went through the tokenizer",
    ),
    "unstable-ids": Kind(
        WARN, "text that was decoded has other ids ({what})", "ids, decoded and encoded again, are the same", ""
    ),
    "hides-tags": Kind(
        FAIL,
        "{what} are special tokens, so they are not in the text that graders read",
        "tags that a model writes stand in its text",
        "make them tokens that are not special in tokenizer.json",
    ),
    "tools-unread": Kind(
        WARN,
        "the template asks for tool calls in a form that hone does not read",
        "calls are in the form of Qwen, Llama 3, Mistral or DeepSeek V3",
        "tasks with tools need another template: model.chat_template",
    ),
    "tools-untaught": Kind(
        NOTE, "the template knows no tools: hone lists them in the system message, in the form of Qwen", "", ""
    ),
    "tool-listing": Kind(
        WARN, "the list of tools lacks {what}", "name, description and arguments of each tool are listed", OTHER
    ),
    "tool-calls": Kind(
        FAIL,
        "a tool call is not read as it was written ({what})",
        "a call that is written is read back, with its arguments",
        OTHER,
    ),
    "tool-arguments": Kind(
        WARN,
        "some arguments of a tool call are not read as they were written ({what})",
        "a call that is written is read back, with its arguments",
        "keep such text out of arguments",
    ),
    "default-system": Kind(
        NOTE,
        "without a system message the template writes one of its own",
        "the prompt holds what the task says",
        "give the task a system_prompt if you want another",
    ),
    "renderer-differs": Kind(
        WARN,
        "the renderers package, which hone uses for this model, and the model's own template differ ({what})",
        "both write the same ids",
        "engines that use the template (vLLM's chat endpoint) see the other prompt; to train on the template, give it "
        "with model.chat_template",
    ),
}


def findings_of(problems: Iterable[Problem]) -> tuple[Finding, ...]:
    """One finding for each name, in the order in which they were seen, with the worst conversation for each `what`."""
    by_name: dict[str, dict[str, Problem]] = {}
    for problem in problems:
        found = by_name.setdefault(problem.name, {})
        first = found.setdefault(problem.what, problem)
        if worst((_verdict(first), _verdict(problem))) != _verdict(first):
            found[problem.what] = problem
    return tuple(_finding(name, list(found.values())) for name, found in by_name.items())


def _verdict(problem: Problem) -> Verdict:
    return problem.verdict or KINDS[problem.name].verdict


def _finding(name: str, problems: list[Problem]) -> Finding:
    kind = KINDS[name]
    what = tuple(problem.what for problem in problems)
    return Finding(
        name=name,
        verdict=worst(_verdict(problem) for problem in problems),
        title=kind.title.format(what=", ".join(what)),
        remedy=kind.remedy,
        what=what,
        shown=tuple(_shown(problem, kind) for problem in problems[:MOST_SHOWN]),
    )


def _shown(problem: Problem, kind: Kind) -> Shown:
    conversation = problem.conversation
    return Shown(
        example_id="",
        completion=[dict(message) for message in conversation.messages],
        outcome=problem.what,
        reward=None,
        expected=kind.expected,
        detail=f"{problem.difference}\n{conversation.json()}",
    )
