"""What holds of the adapters where their libraries are not installed."""

from __future__ import annotations

import importlib.util

import pytest

from hone.cli import main
from hone.environments import load_environment
from hone.errors import UserError
from hone.extensions.libraries import verifiers


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("reasoning-gym:countdown", "evaluates the answer as Python code.*hone's task `countdown`"),
        ("reasoning_gym:rush-hour", "is refused: it gives no answer that its own score accepts"),
        ("reasoning-gym:leg_count", "did you mean .*leg_counting"),
        ("verifiers-v0:guessing", "no longer runs environments of verifiers v0; .*verifiers:TASKSET"),
        ("verifiers_v0:guessing", "no longer runs environments of verifiers v0; .*verifiers:TASKSET"),
        ("gym:leg_counting", "write LIBRARY:TASK"),
        ("reasoning-gym:", "write LIBRARY:TASK"),
    ],
)
def test_ids_that_are_none_are_refused_with_the_remedy(env_id: str, message: str):
    with pytest.raises(UserError, match=message):
        load_environment(env_id)


@pytest.mark.parametrize(
    ("env_id", "remedies"),
    [
        ("reasoning-gym:leg_counting", ["pip install 'reasoning-gym>=0.1.25,<0.2'"]),
        ("verifiers:capitals", ["make verifiers-env", "pip install 'verifiers>=0.3.1,<0.5'"]),
    ],
)
def test_without_the_library_one_sentence_says_how_to_get_it(env_id, remedies, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(verifiers, "CHECKOUT", tmp_path)
    find = importlib.util.find_spec
    hidden = ("reasoning_gym", "verifiers")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in hidden else find(name, *rest))
    assert main(["eval", env_id, "-m", "hone/tiny"]) == 2
    text = capfd.readouterr().err
    assert all(remedy in text for remedy in remedies) and "Traceback" not in text
