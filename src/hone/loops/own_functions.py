"""The user's losses and advantages: `MODULE:FUNCTION` in a config, or a function that a program gives.

A program's function is written into the run with its dependencies, as `algorithm.py`, so that the run can be resumed
and verified without the program. If this fails, only the program can resume the run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hone import trust
from hone.config.base import changed, value_of
from hone.config.rl import RLConfig
from hone.environments.task_files import find_function, source_digest, text_digest

FILE = "algorithm.py"
KEYS = {"loss": "trainer.loss.function", "advantages": "orchestrator.advantage.function"}


@dataclass
class UserFunctions:
    """The user's functions of a run, their digests and file. `import_problem` says why the file can't be imported."""

    functions: dict[str, Callable[..., Any]] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    import_problem: str = ""

    @classmethod
    def of(cls, config: RLConfig, without: tuple[str, ...] = ()) -> UserFunctions:
        """Import the functions that the config names, except `without`. Raises UserError if a function is missing."""
        found = cls()
        for name, key in KEYS.items():
            place = value_of(config, key)
            if place is not None and name not in without:
                found.functions[name], file = find_function(place)
                if file is not None:
                    found.digests[name] = source_digest(file)
                    trust.note_digest(f"the function {place}", lambda digest=found.digests[name]: digest)
        return found

    @classmethod
    def given(
        cls, config: RLConfig, **functions: Callable[..., Any] | str | None
    ) -> tuple[UserFunctions, dict[str, str]]:
        """Return the given functions, else the config's, and the config keys that name them.

        Raises UserError if a function can't be used.
        """
        if not any(functions.values()):
            return cls.of(config), {}
        from hone.environments.functions import checked_function, place_of
        from hone.environments.kept_source import standalone_source

        objects = {
            name: checked_function(f, name) for name, f in functions.items() if f is not None and not isinstance(f, str)
        }
        places = {name: f if isinstance(f, str) else place_of(f) for name, f in functions.items() if f is not None}
        here = {name: objects[name] for name, place in places.items() if place is None}
        text, import_problem = standalone_source(list(here.values())) if here else ("", "")
        for name in here:
            places[name] = f"{config.output_dir / FILE}:{objects[name].__name__}"
        named = {KEYS[name]: place for name, place in places.items() if place is not None}
        found = cls.of(changed(config, named), without=tuple(here))
        found.functions |= here
        found.digests |= dict.fromkeys(here, text_digest(text.encode(), [Path.cwd(), Path(sys.path[0])]))
        found.files |= {FILE: text} if here else {}
        found.import_problem = import_problem
        return found, named
