"""Where each page lies, seen from another: the same tree, whether it is served or written as files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode


@dataclass(frozen=True)
class Links:
    """Relative links from the page `here`, a path that ends with a slash or is empty (the list of runs).

    They hold behind any proxy, and, with `files`, in a folder of files.
    """

    here: str = ""
    files: bool = False

    def runs(self) -> str:
        return self._to("")

    def run(self, slug: str) -> str:
        """The overview."""
        return self._to(f"run/{_quoted(slug)}/")

    def step(self, slug: str, step: int, **query: Any) -> str:
        """The rollouts of a step."""
        return self._to(f"run/{_quoted(slug)}/step/{step}/", query)

    def sample(self, slug: str, step: int, row: int, **query: Any) -> str:
        """One completion: `row` of the step's file, from 0."""
        return self._to(f"run/{_quoted(slug)}/sample/{step}/{row}/", query)

    def compare(self, slug: str, example: str, before: int, after: int) -> str:
        """The completions of an example at two steps."""
        return self._to(f"run/{_quoted(slug)}/compare/{_quoted(example)}/{before}/{after}/")

    def search(self, slug: str, **query: Any) -> str:
        return self._to(f"run/{_quoted(slug)}/search/", query)

    def behaviours(self, slug: str, **query: Any) -> str:
        """What emerges over the steps."""
        return self._to(f"run/{_quoted(slug)}/behaviours/", query)

    def evaluation(self, slug: str, step: int | None = None, **query: Any) -> str:
        """The samples of the evaluation of a version, or of a run of `hone eval`."""
        return self._to(f"run/{_quoted(slug)}/eval/{'' if step is None else f'{step}/'}", query)

    def change(self, slug: str, before: int, after: int, **query: Any) -> str:
        """Two evaluations, example by example."""
        return self._to(f"run/{_quoted(slug)}/change/{before}/{after}/", query)

    def card(self, slug: str) -> str:
        """The run card."""
        return self._to(f"run/{_quoted(slug)}/card/")

    def curves(self, **query: Any) -> str:
        return self._to("curves/", query)

    def predictions(self) -> str:
        return self._to("predictions/")

    def asset(self, name: str) -> str:
        """A script or style sheet."""
        return f"{self._up}assets/{name}"

    def data(self, slug: str, name: str, **query: Any) -> str:
        """What scripts fetch; of use only where pages are served."""
        return f"{self._up}data/{_quoted(slug)}/{name}{_query(query)}"

    def all_data(self, name: str) -> str:
        """The same about all runs."""
        return f"{self._up}data/{name}"

    @property
    def _up(self) -> str:
        return "../" * self.here.count("/")

    def _to(self, path: str, query: dict[str, Any] | None = None) -> str:
        file = "index.html" if self.files else ""
        return (f"{self._up}{path}{file}" or "./") + _query(query or {})


def _quoted(name: str) -> str:
    return quote(name, safe="~")


def _query(values: dict[str, Any]) -> str:
    given = {name: value for name, value in values.items() if value not in (None, "", [], ())}
    return f"?{urlencode(given, doseq=True)}" if given else ""
