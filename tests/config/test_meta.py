"""What a field says of itself. Help, resume checks, comparisons of runs and agreement of roles read it there."""

from __future__ import annotations

import pytest

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
