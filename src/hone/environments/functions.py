"""A task made of a data set and reward functions, without a task file: the environment `functions`.

    rl --reward rewards:exact --data problems.jsonl

    def exact(completion, answer):                      # one completion, as in any task of hone
        return float(completion[-1]["content"].strip() == answer)

    def short(completions, **columns):                  # as in TRL: a group of completions, and a list per column
        return [float(len(text) == min(map(len, completions))) for text in completions]

Rows have `prompt` (text or messages) or `question`, perhaps `answer`, and any other columns, which functions may ask
for by name. A function with a parameter `completions`, `prompts` or `completion_ids` gets all completions of a prompt
that are graded together in one call: as messages if the row's prompt is messages, else as text. It also gets a list for
each column, with the row's value repeated. It returns a list with a value for each completion.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import BuiltinFunctionType
from typing import Any, NamedTuple

from hone import trust
from hone.config.hoist import FUNCTIONS
from hone.digests import text_sha256
from hone.environments.data import Row, Rows, given_rows, hold_out, to_jsonl, train_and_eval
from hone.environments.environment import Environment, Origin, SingleTurnEnv
from hone.environments.kept_source import standalone_name, standalone_source
from hone.environments.parsers import completion_text
from hone.environments.references import Reference
from hone.environments.rubric import (
    OFFERED,
    RewardFunc,
    Rubric,
    Sample,
    component_name,
    is_async,
    is_inline,
    of_group,
    unwrapped,
)
from hone.environments.services import Service
from hone.environments.task_files import find_function, source_digest, sources, text_digest
from hone.errors import UserError
from hone.extension import exported
from hone.grading import GraderFailure
from hone.runs.view import REWARDS
from hone.types import Outcome, content_hash

_IS_TEXT = "prompt_is_text"
"""Key of `info`: True if the row's prompt was text, so that functions of `completions` get text."""
_LISTS = ("completions", "prompts", "completion_ids")
"""Parameters of TRL's form: each is a list with an item for each completion of the group."""
_TRAINERS = {"trainer_state", "log_extra", "log_metric"}
"""Arguments of TRL's trainer that hone lacks."""


def load_environment(
    rewards: Sequence[str] | str = (),
    data: str | None = None,
    eval_data: str | None = None,
    weights: Sequence[float] | None = None,
    correct: str | None = None,
    system_prompt: str | None = None,
    split: str = "train",
    eval_split: str = "test",
    agent: str | None = None,
    agent_command: str | None = None,
    agent_limits: dict[str, Any] | None = None,
    agent_env: list[str] | None = None,
    reference: str | None = None,
) -> Environment:
    """Return the task of these `rewards` ("MODULE:FUNCTION" or "FILE.py:FUNCTION") on `data` (file, folder, hub id).

    Without `eval_data` a tenth of the prompts is held out. `weights` default to 1. `correct` names the function that
    decides which answers are right, by default the first. Instead of `rewards`, a program may make rollouts and
    rewards: the async function `agent`, or the command `agent_command`, with `agent_limits` and the variables
    `agent_env`. `reference` makes right answers for an audit: a template ("<answer>{answer}</answer>") or
    "MODULE:FUNCTION".
    """
    places, where = _as_list(rewards), (data, eval_data, weights, correct, system_prompt, split, eval_split)
    source, has_agent = None, agent is not None or agent_command is not None
    if has_agent:
        source = None if agent is None else _source(agent)
        if agent_command is not None:
            trust.check_named(f"the agent's command {agent_command!r}")
        check_agent(source, agent_command, places)
    elif not places or not all(isinstance(place, str) for place in places):
        raise UserError("nothing is rewarded: add --reward MODULE:FUNCTION")
    if data is None and eval_data is None:
        raise UserError("there is no data set: say which with --data FILE_OR_HUB_ID")
    if has_agent:
        return _of_program(source, agent_command, agent_limits, *where, agent_env=agent_env)
    found = [_source(place) for place in places]
    return FunctionTask(found, *where, reference=None if reference is None else _reference(reference))


def _reference(reference: Any) -> Reference:
    if callable(reference):
        return checked_function(reference, "reference")
    if not isinstance(reference, str) or not ("{" in reference or ":" in reference):
        example = "a template such as '<answer>{answer}</answer>', a function, or MODULE:FUNCTION"
        raise UserError(f"reference is {reference!r}: give {example}")
    return reference if "{" in reference else find_function(reference)[0]


class Source(NamedTuple):
    """A reward function, the file of its module (None if unknown) and a digest of its code."""

    func: RewardFunc
    file: Path | None
    digest: str


def _source(place: str) -> Source:
    func, file = find_function(place)
    if file is None:
        return Source(func, None, place)
    stored = trust.is_stored(file)
    return Source(func, file, text_digest(file.read_bytes(), [Path.cwd()]) if stored else source_digest(file))


class FunctionTask(SingleTurnEnv):
    """The task of reward functions on data. `data` and `eval_data` are rows, a path or a hub id."""

    def __init__(
        self,
        found: Sequence[Source],
        data: str | Rows | None,
        eval_data: str | Rows | None,
        weights: Sequence[float] | None = None,
        correct: str | None = None,
        system_prompt: str | None = None,
        split: str = "train",
        eval_split: str = "test",
        reference: Reference | None = None,
    ) -> None:
        graders = [_Grader(source.func) for source in found]
        self.needed = {name for grader in graders for name in grader.columns}
        self.batched = any(grader.batched for grader in graders)
        sources = train_and_eval(data, eval_data, split, eval_split, functools.partial(hold_out, key=_prompt), _no_rows)
        super().__init__(
            id=FUNCTIONS,
            rubric=Rubric([grader.reward_func() for grader in graders], weights, correctness=correct),
            dataset=sources["dataset"] if data is not None else None,
            eval_dataset=sources["eval_dataset"],
            system_prompt=system_prompt,
            reference=reference,
        )
        self._lists_answers = any(one.batched and "answer" in one.columns for one in graders)
        self._reads_answer = {component_name(one.func) for one in graders if one.reads_answer}
        self.own_label = component_name(found[0].func) if found else FUNCTIONS
        self.module = next((source.file for source in found if source.file is not None), None)
        made_of = list(dict.fromkeys(source.digest for source in found))
        self._made_of = made_of[0] if len(made_of) == 1 else content_hash(made_of)

    def format_row(self, row: Row) -> Row:
        if missing := self.needed - row.keys():
            raise KeyError(min(missing))
        answer, given = row.get("answer"), row.get("info")
        others = set(row) - {"prompt", "answer", "info"} - ({"question"} - self.needed)
        info = {name: value for name, value in row.items() if name in others}
        if not isinstance(answer, str | None):
            info["answer"] = answer  # functions get it as it is, and not as text
        if self.batched and isinstance(_raw_prompt(row), str):
            info[_IS_TEXT] = True
        if isinstance(given, str):
            with suppress(json.JSONDecodeError):
                given = json.loads(given or "{}")
        info = {**given, **info} if isinstance(given, dict) else given or info
        return {"prompt": _raw_prompt(row), "answer": answer, "info": info}

    @property
    def needs_answer(self) -> bool:
        return self._lists_answers or super().needs_answer

    @property
    def reads_answer(self) -> bool:
        return self.rubric.correctness in self._reads_answer

    def digests(self, splits: Sequence[str]) -> dict[str, str]:
        return super().digests(splits) | {"environment": self._made_of}


def _no_rows(split: str) -> Rows:
    raise UserError(f"there are no rows for {split}")


def _raw_prompt(row: Row) -> Any:
    return row["prompt"] if row.get("prompt") is not None else row.get("question")


def _prompt(row: Row) -> str:
    """Return the prompt as text. It is the key for `hold_out`, so that no held-out prompt is trained on."""
    prompt = _raw_prompt(row)
    if prompt is None:
        raise KeyError("prompt")
    return prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True)


class _Grader:
    """A reward function, with the arguments that its parameters ask for.

    `batched`: the function has TRL's form and gets lists. `others`: parameters that a rubric doesn't offer, so columns
    of the data. `columns`: those `others` without a default. Raises UserError for a required argument of TRL's trainer.
    """

    def __init__(self, func: RewardFunc) -> None:
        parameters = inspect.signature(func).parameters.values()
        named = {p.name: p.default for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        self.func, self.names = func, named.keys()
        self.takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self.batched = "completions" in named or ("completion" not in named and not named.keys().isdisjoint(_LISTS))
        self.others = named.keys() - ((*_LISTS, "info") if self.batched else OFFERED)
        self.columns = {name for name in self.others if named[name] is inspect.Parameter.empty}
        self.needs_ids = named.get("completion_ids", 0) is inspect.Parameter.empty
        if refused := self.columns & (_TRAINERS if self.batched else {*_TRAINERS, "completion_ids"}):
            offered = (*_LISTS, "info") if self.batched else OFFERED
            raise UserError(
                f"reward function {component_name(func)} has a parameter {min(refused)!r}, which hone does not offer: "
                f"it offers {', '.join(offered)} and the columns of the data. Leave it out, or give it a default"
            )

    @property
    def reads_answer(self) -> bool:
        """True if the function asks for `answer`, by a parameter or as a key of its `**columns`."""
        code = getattr(inspect.unwrap(unwrapped(self.func)), "__code__", None)
        return "answer" in self.names or (self.takes_all and "answer" in getattr(code, "co_consts", ()))

    def reward_func(self) -> RewardFunc:
        func = self.func
        if self.batched:
            return self._by_group()
        if not self.others and "answer" not in self.names:
            return func

        def graded(**offered: Any) -> Any:
            return func(**self._arguments(offered))

        async def graded_later(**offered: Any) -> Any:
            return await func(**self._arguments(offered))  # type: ignore[misc]

        made: Any = graded_later if is_async(func) else graded
        made.__name__, made.inline = component_name(func), is_inline(func)
        keyword, wanted = inspect.Parameter.KEYWORD_ONLY, (self.names & {*OFFERED}) | {"info"}
        made.__signature__ = inspect.Signature([inspect.Parameter(name, keyword) for name in sorted(wanted)])
        return made

    def _by_group(self) -> RewardFunc:
        func = self.func

        def graded(samples: Sequence[Sample]) -> Any:
            return self._values(func(**self._lists(samples)), len(samples))

        async def graded_later(samples: Sequence[Sample]) -> Any:
            return self._values(await func(**self._lists(samples)), len(samples))  # type: ignore[misc]

        made: Any = graded_later if is_async(func) else graded
        made.__name__, made.inline = component_name(func), is_inline(func)
        return of_group(made, ids=self.takes_all or "completion_ids" in self.names, needs_ids=self.needs_ids)

    def _arguments(self, offered: Mapping[str, Any]) -> dict[str, Any]:
        info = offered["info"]
        columns = {name: info[name] for name in {*self.others, "answer"} & self.names & info.keys()}
        return {name: value for name, value in offered.items() if name in self.names} | columns

    def _lists(self, samples: Sequence[Sample]) -> dict[str, list[Any]]:
        rows = []
        for sample in samples:
            info, prompt, completion = dict(sample.example.info), sample.example.prompt, sample.completion
            if info.pop(_IS_TEXT, False):
                prompt, completion = prompt[-1]["content"], completion_text(completion)
            row = {"answer": sample.example.answer} | info | {"prompts": prompt, "completions": completion}
            row |= {} if sample.completion_ids is None else {"completion_ids": sample.completion_ids}
            rows.append(row | ({"info": info} if "info" in self.names else {}))
        return {name: [row[name] for row in rows] for name in rows[0] if self.takes_all or name in self.names}

    def _values(self, values: Any, count: int) -> list[Any] | GraderFailure:
        values = values.tolist() if hasattr(values, "tolist") else values
        if isinstance(values, list | tuple) and len(values) == count:
            return list(values)
        got = f"a list of {len(values)}" if isinstance(values, list | tuple) else f"{values!r:.60}"
        name, plural = component_name(self.func), "s" * (count != 1)
        detail = f"{name} returned {got} for {count} completion{plural}: return a list with a number (or None) for each"
        return GraderFailure(Outcome.GRADER_ERROR, detail)


def _of_program(*args: Any, **more: Any) -> Environment:
    if (make := exported("environments.agent_task")) is None:
        raise UserError("this hone lacks the extension that runs programs: leave the agent out, or install all of hone")
    return make(*args, **more)


def check_agent(agent: Any, command: Any, rewards: Sequence[Any]) -> None:
    if agent is not None and command is not None:
        raise UserError("agent (a function) and agent_command are both set: leave one out")
    if rewards:
        raise UserError("an agent gives the rewards itself: leave out the reward functions")


@dataclass(frozen=True)
class ProgramTask:
    """The task that a Python program gives. `load` makes it.

    `args`: the task's arguments. `files`: texts of files in the run's folder that `args` names. `graded_here`:
    functions that other processes can't import; if there is one, all functions run in this process. `import_problem`:
    why `rewards.py` can't be imported without the program, or "".
    """

    args: dict[str, Any]
    files: dict[str, str]
    graded_here: list[str]
    import_problem: str
    load: Callable[[], Environment]

    @property
    def digests(self) -> dict[str, str]:
        return {name: text_sha256(text) for name, text in self.files.items() if name != REWARDS}


def given_task(
    folder: Path,
    args: Mapping[str, Any],
    dataset: Any = None,
    eval_dataset: Any = None,
    reward_funcs: Sequence[RewardFunc | str] | RewardFunc | str = (),
    reward_weights: Sequence[float] | None = None,
    correct: RewardFunc | str | None = None,
    agent: Callable[..., Any] | str | None = None,
    reference: Reference | None = None,
) -> ProgramTask:
    """Return the task of these functions, or of `agent`, on these data sets. `args` has further arguments.

    A data set is a path, a hub id, or rows for `given_rows`. `folder` is the run's folder.
    """
    reward_funcs = reward_funcs or ()
    funcs = [reward_funcs] if isinstance(reward_funcs, str) or callable(reward_funcs) else list(reward_funcs)
    agent, command = agent or args.get("agent"), args.get("agent_command")
    if has_agent := agent is not None or command is not None:
        check_agent(agent, command, [*funcs, *_as_list(args.get("rewards", []))])
        funcs = [] if agent is None else [agent]
    objects = [
        checked_function(func, "agent" if has_agent else "reward_funcs") for func in funcs if not isinstance(func, str)
    ]
    reference = args.get("reference") if reference is None else reference
    objects += [checked_function(reference, "reference")] if callable(reference) else []
    placed = [(func if isinstance(func, str) else place_of(func), func) for func in funcs]
    placed = placed or [(place, place) for place in _as_list(args.get("rewards", []))]
    text, import_problem = standalone_source(objects) if objects else ("", "")
    digest = text_digest(text.encode(), [Path.cwd(), Path(sys.path[0])])
    found = [(p, Source(checked_function(func), None, digest) if p is None else _source(p)) for p, func in placed]
    if not found and not has_agent:
        raise UserError("there is no reward function: give reward_funcs=[…]; the first decides which answers are right")
    here = [component_name(source.func) for place, source in found if place is None]
    rows = {"data": given_rows(dataset, "dataset"), "eval_data": given_rows(eval_dataset, "eval_dataset")}
    files = {f"{name}.jsonl": to_jsonl(made) for name, made in rows.items() if isinstance(made, Rows)}
    files |= {REWARDS: text} if text else {}
    named: dict[str, Any] = dict(args)
    named |= {name: str(folder / f"{name}.jsonl") if isinstance(r, Rows) else r for name, r in rows.items() if r}
    names = [place or f"{folder / REWARDS}:{standalone_name(source.func)}" for place, source in found]
    named |= ({"agent": names[0]} if names else {}) if has_agent else {"rewards": names}
    named |= {} if reward_weights is None else {"weights": _numbers(reward_weights)}
    named |= {} if correct is None else {"correct": correct if isinstance(correct, str) else component_name(correct)}
    if callable(reference):
        named["reference"] = place_of(reference) or f"{folder / REWARDS}:{standalone_name(reference)}"
    elif reference is not None:
        named["reference"] = reference
    data = [rows[name] or named.get(name) for name in rows]
    if data == [None, None]:
        raise UserError("there is no data set: set dataset to a path, a hub id or a list of dicts")

    def load() -> Environment:
        not_more = ("rewards", "agent", "agent_command", "agent_limits", "agent_env", "reference", *rows)
        more: dict[str, Any] = {name: value for name, value in named.items() if name not in not_more}
        if has_agent:
            source, limits = found[0][1] if found else None, named.get("agent_limits")
            return _of_program(source, command, limits, *data, agent_env=named.get("agent_env"), **more)
        more["reference"] = None if reference is None else _reference(reference)
        task = FunctionTask([source for _, source in found], data[0], data[1], **more)
        if not here:
            task.loaded_by(Origin(FUNCTIONS, named, os.getcwd(), list(sys.path), sources()))
        return task

    return ProgramTask(named, files, here, import_problem if here else "", load)


def place_of(func: Callable[..., Any]) -> str | None:
    """Return "MODULE:NAME" for workers to import; None for a function in a notebook, a script or another function.

    An object, a bound method or a partial must be a global variable in the module that defines its class or function.
    """
    home, names = unwrapped(func).__module__, [component_name(func)]
    if not inspect.isfunction(inspect.unwrap(func)) and home in sys.modules:
        names = [name for name, value in vars(sys.modules[home]).items() if value is func]
    if home != "__main__":
        for name in names:
            with suppress(UserError):
                if find_function(f"{home}:{name}")[0] is func:
                    return f"{home}:{name}"
    return None


def checked_function(func: Any, where: str = "reward_funcs") -> Callable[..., Any]:
    """Return `func` if it is a named function or, as a reward, an object, partial or method. UserError otherwise."""
    if isinstance(func, Service):
        return func  # type: ignore[return-value]
    inner = unwrapped(func) if where == "reward_funcs" else func
    if where == "reward_funcs" and callable(inner) and not isinstance(inner, type | BuiltinFunctionType):
        inner = inner if inspect.isroutine(inner) else type(inner).__call__
        inner = getattr(inner, "__func__", inner)  # of a bound method
    if not inspect.isfunction(inner := inspect.unwrap(inner)) or inner.__name__ == "<lambda>":
        define = "async def" if where == "agent" else "def"
        raise UserError(f"{func!r} in {where} is not a named function: define one with `{define}`")
    return func


def _numbers(weights: Any) -> list[float]:
    try:
        if isinstance(weights, str | Mapping):
            raise TypeError
        return [float(weight) for weight in weights]
    except (TypeError, ValueError):
        raise UserError(f"reward_weights is {weights!r}; it must be a list of numbers, one for each function") from None


def _as_list(value: Any) -> list[Any]:
    return [value] if isinstance(value, str) else list(value)
