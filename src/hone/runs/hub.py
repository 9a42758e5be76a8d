"""`push_to_hub`: weights and their model card to a repository of the Hugging Face hub, by its own client.

The client finds the token by itself (HF_TOKEN, or what `hf auth login` has saved): nothing here writes it anywhere.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from hone.config.shared import HubConfig, RunConfig
from hone.errors import UserError, first_line
from hone.runs.files import MARKER, read_json
from hone.runs.observer import Observer
from hone.runs.reader import Run
from hone.runs.view import CARD

if TYPE_CHECKING:
    from hone.runs.writer import RunWriter

_LONGEST = 300
"""Characters that are shown of the hub's reason."""
_OURS = ["model.safetensors*", "model-*-of-*.safetensors", "adapter/*"]
"""Weights of a version. One with other files replaces them all: transformers and hone would load what is left over."""


def check(config: RunConfig) -> None:
    """Ask the hub, before anything is spent, whether the run may write to its repository.

    Raises UserError offline, without a token, with one that can't write there, and if the hub does not answer.
    """
    if config.push_to_hub is None:
        return
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.constants import is_offline_mode

    repo, or_else = config.push_to_hub.repo, "or leave out --push-to-hub"
    if is_offline_mode():
        raise UserError(f"--push-to-hub needs the hub, and HF_HUB_OFFLINE is set: unset it, {or_else}")
    if get_token() is None:
        raise UserError(f"--push-to-hub needs a token with write access: `hf auth login`, or set HF_TOKEN, {or_else}")
    try:
        me = HfApi().whoami()
    except Exception as error:  # of the client's HTTP library: no network, a proxy, a token that is refused
        status = getattr(getattr(error, "response", None), "status_code", None)
        why, remedy = f"answers with status {status}", "try again later"
        if status is None:
            why, remedy = "can't be reached", "check the network, and HF_ENDPOINT"
        elif status in (401, 403):
            why, remedy = "does not take the token", "`hf auth login`"
        raise UserError(f"the hub {why} ({reason(error)}): {remedy}, {or_else}") from None
    if (problem := refusal(me, repo)) is not None:
        raise UserError(f"the token of {me.get('name')} can't write to {repo}, for {problem}, {or_else}")


def refusal(me: Mapping[str, Any], repo: str) -> str | None:
    """Return why the token that `whoami` (`me`) describes can't write to `repo`, with the remedy; None if it can.

    Source: the hub's /api/whoami-v2. What it does not say is no reason.
    """
    owner, token = repo.partition("/")[0], (me.get("auth") or {}).get("accessToken") or {}
    roles = {org.get("name"): org.get("roleInOrg") for org in me.get("orgs") or []}
    new = "make one at https://huggingface.co/settings/tokens"
    if owner != me.get("name") and (owner not in roles or roles[owner] == "read"):
        mine = ", ".join([str(me.get("name")), *(str(org) for org, role in roles.items() if role != "read")])
        return f"{owner} is neither its user nor an organisation that it may write to: name a repository of {mine}"
    if token.get("role") == "read":
        return f"it only reads: {new} that writes"
    scopes = (token.get("fineGrained") or {}).get("scoped")
    if token.get("role") == "fineGrained" and scopes is not None:
        named = [one for one in scopes if (one.get("entity") or {}).get("name") in (owner, repo)]
        if not any("repo.write" in (one.get("permissions") or []) for one in named):
            return f"it has no permission to write there: {new} that has (repo.write)"
    return None


class Push(Observer):
    """Pushes the last weights when a run ends as it was meant to, and before that every save if it is asked to.

    A push that fails costs the run nothing: the weights stay, and a sentence says how to push them by hand.
    """

    def __init__(self, settings: HubConfig) -> None:
        self._settings = settings
        self._thread: Thread | None = None
        self._tried = -1
        self._outcome: tuple[int, str | Exception] | None = None

    def before_start(self, run: RunWriter) -> None:
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()  # the terminal is the display's
        self._run = run

    def after_step(self, step: int, metrics: Mapping[str, Any], timings: Mapping[str, Any]) -> None:
        """Push the newest weights in a thread, unless one is at work: then those after it will be newer."""
        if self._settings.strategy == "end" or (self._thread is not None and self._thread.is_alive()):
            return
        self._tell()
        if (newest := max(Run(self._run.folder).weights(), default=-1)) > self._tried:
            self._thread = Thread(target=self._try, args=(newest,), daemon=True)  # it must not keep a process alive
            self._thread.start()

    def at_end(self, status: str) -> None:
        weights = Run(self._run.folder).weights()
        if not weights:
            return
        last = max(weights)
        try:
            if status not in ("done", "budget"):
                return self._by_hand(last, "the run did not end as planned")
            self._run.display.phase("push")
            if self._thread is not None:
                self._thread.join()
                self._tell()
            self._try(last)  # again at the end, if it was pushed before: now its card has the result
            self._tell(at_end=True)
        except KeyboardInterrupt:
            self._by_hand(last, "interrupted")

    def _try(self, step: int) -> None:
        self._tried = step
        try:
            self._outcome = step, self._push(step)
        except Exception as error:  # of the client and its HTTP library; a run does not end by it
            self._outcome = step, error

    def _tell(self, at_end: bool = False) -> None:
        if self._outcome is None:
            return
        (step, result), self._outcome = self._outcome, None
        if isinstance(result, Exception):
            with suppress(OSError):  # a full disk ends the run where it has something of its own to write
                self._run.event("push_failed", step, repo=self._settings.repo, cause=reason(result))
            return self._by_hand(step, reason(result), "" if at_end else ". The next save will be pushed")
        self._run.event("pushed", step, repo=self._settings.repo)
        self._run.display.message(f"Pushed the weights of step {step}: {result}")

    def _by_hand(self, step: int, cause: str, more: str = "") -> None:
        private = ["--private"] if self._settings.private else []
        stale = [word for pattern in _OURS for word in ("--delete", pattern)]
        words = ["hf", "upload", self._settings.repo, str(self._run.weights_path(step)), *private, *stale]
        self._run.display.message(
            f"The weights of step {step} were not pushed ({cause}). To push them: {shlex.join(words)}{more}"
        )

    def _push(self, step: int) -> str:
        """Push a version in one commit, which names its step; return the address of the repository."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
        from huggingface_hub.utils import filter_repo_objects

        api, folder, repo = HfApi(library_name="hone"), self._run.weights_path(step), self._settings.repo
        url = api.create_repo(repo, private=self._settings.private, exist_ok=True)
        names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        contents: dict[str, Path | bytes] = {name: folder / name for name in names if name != MARKER}
        contents["README.md"] = self._card(folder).encode()
        left = set(filter_repo_objects(api.list_repo_files(repo), allow_patterns=_OURS)) - contents.keys()
        files = [CommitOperationAdd(name, content) for name, content in contents.items()]
        stale = [CommitOperationDelete(name) for name in sorted(left)]
        api.create_commit(repo, files + stale, commit_message=f"hone {self._run.info['kind']}: weights of step {step}")
        return str(url)

    def _card(self, folder: Path) -> str:
        """Return the model card of these weights for the hub, with what the run card says first once there is one."""
        text = (folder / "README.md").read_text(encoding="utf-8").replace("<this folder>", self._settings.repo)
        record = self._run.folder / CARD[1]
        if not record.is_file():
            return text
        facts = read_json(record)
        return f"{text}\n## Result\n\n{' '.join(facts['verdict'])}\n\n" + "".join(
            f"- {one}\n" for one in facts["caveats"]
        )


def reason(error: Exception) -> str:
    """Return an error's first line, without a token that it may hold."""
    text = re.sub(r"\bhf_\w+", "…", first_line(error))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"
