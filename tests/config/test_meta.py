"""What a field says of itself. Help, resume checks, comparisons of runs and agreement of roles read it there."""

from __future__ import annotations

import re

import pytest

from hone.cli import commands
from hone.config.base import BaseConfig, dotted, lookup, walk
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.runs.settings import differing

FREE = {
    "rounding": """checkpointing trainer.checkpointing trainer.ranks mode inference.replicas inference.tensor_parallel
        orchestrator.client.base_url teacher.base_url""",
    "nothing": """output_dir ckpt stop budget grace_seconds wandb trackio alarms predict report display
        audit restarts transport gap.action trainer.record_tokens orchestrator.grading inference.port
        inference.vllm_python orchestrator.client.api_key_var orchestrator.client.timeout
        orchestrator.client.max_retries teacher.api_key_var teacher.timeout teacher.max_retries""",
    "start": "resume allow_drift detach",
}
"""All keys that a resume may change."""
MARKED = FREE | {"digest": "model.name model.chat_template model.init"}
"""All keys but those that decide the bytes by their value. A section stands for its keys."""
UNITS = {"timeout": "second", "usd": "dollar", "seq_len": "token", "positions": "token", "interval": "step"}
"""Last words of names of numbers that do not have the unit, and the unit that the docstring has to name then."""


@pytest.mark.parametrize("cls", [RLConfig, SFTConfig])
def test_a_resume_refuses_another_value_of_every_key_that_does_not_say_that_it_is_free(cls: type[BaseConfig]) -> None:
    for key in walk(cls):
        name, around = dotted(key.path), {dotted(key.path[:end]) for end in range(1, len(key.path) + 1)}
        kinds = [kind for kind, names in MARKED.items() if around & set(names.split())]
        assert [key.meta.decides] == (kinds or ["bytes"]), name
        if not key.section:
            assert differing({name: 1}, {name: 2}, names_matter=True) == ([] if set(kinds) & FREE.keys() else [name])
            assert differing({name: 1}, {name: 2}) == ([] if kinds else [name])


@pytest.mark.needs("alarms", "audit", "services", "split", "trackers", "viewer", "vllm")
def test_the_keys_of_these_lists_are_there() -> None:
    names = [name for names in MARKED.values() for name in names.split()]
    assert all(any(lookup(one, tuple(name.split("."))) for one in (RLConfig, SFTConfig)) for name in names)


def test_every_kind_of_common_keys_has_a_heading_and_every_heading_has_keys() -> None:
    classes = [command.config() for command in commands().values()]
    kinds = {kind for cls in classes for words in cls.kinds().values() for kind in words}
    assert kinds == {kind for cls in classes for key in walk(cls) for kind in (key.meta.common or "").split()}


@pytest.mark.parametrize("name", list(commands()))
def test_the_docstring_of_a_number_names_its_unit(name: str) -> None:
    cls = commands()[name].config()
    fields = {(): cls.model_fields}
    for key in walk(cls):
        description = fields[key.path[:-1]][key.path[-1]].description or ""
        if key.section:
            fields[key.path] = key.section.model_fields
        for words, unit in UNITS.items() if key.type in (int, float) and "Key of `rl`" not in description else ():
            named = re.search(rf"(^|_){words}$", key.path[-1]) is None or unit in description.lower()
            assert named, f"{cls.__name__}: {dotted(key.path)} is in {unit}s"
