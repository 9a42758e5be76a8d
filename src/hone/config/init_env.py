"""`hone init-env NAME`: a task of your own, with its test and its recipes."""

from __future__ import annotations

from typing import ClassVar

from hone.config.base import BaseConfig


class InitEnvConfig(BaseConfig):
    """Write a task that works as it is, to be made your own: a Python file, its test, and recipes that train on it."""

    positional: ClassVar[str | None] = "name"

    name: str
    """Id of the task, such as `my-task`; also the first word of the command line."""
