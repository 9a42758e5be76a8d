"""The package that docs/extensions.md writes, and what installed extensions can break.

The page's blocks are the package: it is built, and installed beside hone's wheel, by `make test-wheel`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hone.config.base import with_keys
from hone.config.parse import CONFIG_OF, parse
from hone.config.rl import RLConfig
from hone.config.shared import RunConfig
from hone.errors import UserError
from hone.extension import Key
from hone.runs import settings
from hone.runs.settings import changes, flat, run_toml

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "extensions.md").read_text()
BIN = os.environ.get("HONE_BIN")
"""Of the environment that has hone's wheel alone."""
TINY = "--model.name hone/tiny --orchestrator.batch-size 4 --orchestrator.rollouts-per-example 2 --display plain"
TINY += " --orchestrator.sampling.max-tokens 8 --ckpt.interval 1 --output-dir o --orchestrator.env.id words:cat"
Hone = Callable[..., subprocess.CompletedProcess[str]]


def write_package(folder: Path) -> Path:
    """Write the page's blocks into the files that their first lines name."""
    for name, body in re.findall(r"^```\w+\n# (\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(body)
    return folder


def run(*words: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"OMP_NUM_THREADS": "1"} | env
    return subprocess.run([*map(str, words)], cwd=cwd, env=env, capture_output=True, text=True)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with the package, and what its wheel would say of it."""
    folder = write_package(tmp_path / "site")
    declare(folder, "hone-words", "hone_words.extension")
    return folder


def declare(site: Path, package: str, module: str, name: str = "words") -> None:
    info = site / f"{package.replace('-', '_')}-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(f"[hone.extensions]\n{name} = {module}\n")


@pytest.fixture
def hone(site: Path, tmp_path: Path) -> Hone:
    return lambda *words: run(sys.executable, "-m", "hone.cli", *words, cwd=tmp_path, PYTHONPATH=str(site))


def test_help_lists_the_command_and_the_key_of_an_installed_package(hone: Hone):
    assert "  count-words " in hone("--help").stdout
    assert "--[no-]count-words" in hone("rl", "--help").stdout
    assert "--[no-]count-words" in hone("rl", "--help", "all").stdout
    assert "count-words" not in hone("sft", "--help", "all").stdout
    assert "Directory of the run." in hone("count-words", "--help").stdout


def test_a_package_that_is_broken_is_named_in_one_sentence(hone: Hone, site: Path):
    observer = site / "hone_words" / "observer.py"
    observer.write_text(observer.read_text().replace("import Observer", "import Obsever"))
    done = hone("rl", *TINY.replace("words:cat", "reverse-text").split())
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "hone_words.observer.observer of the extension hone_words.extension can't be imported" in done.stderr
    assert (
        "ImportError: cannot import name 'Obsever'" in done.stderr and "fix hone_words, or uninstall it" in done.stderr
    )
    (site / "hone_words" / "extension.py").write_text("import nowhere")
    for words in (["--help"], ["runs", "list"]):
        done = hone(*words)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "the extension words of hone can't be imported" in done.stderr
        assert "No module named 'nowhere'" in done.stderr and "fix hone-words, or uninstall it" in done.stderr


def test_two_packages_that_add_the_same_name_are_both_named(hone: Hone, site: Path):
    declare(site, "hone-others", "hone_others", "others")
    (site / "hone_others.py").write_text((site / "hone_words" / "extension.py").read_text())
    done = hone("--help")
    assert done.returncode == 2 and "both add 'count-words' to COMMANDS: rename or uninstall one" in done.stderr
    assert "hone_words.extension" in done.stderr and "hone_others" in done.stderr
    (site / "hone_others.py").write_text("COMMANDS = {'rl': None}")
    assert "hone and hone_others both add 'rl' to COMMANDS" in hone("--help").stderr


def test_a_run_with_a_key_of_an_extension_that_is_not_installed_says_so(tmp_path: Path):
    config = tmp_path / "config.toml"
    config.write_text(f"{CONFIG_OF}rl\ncount_words = true\n")
    with pytest.raises(UserError, match=r"unknown key count_words in .*: it may belong to an extension"):
        parse(RLConfig, ["@", str(config)], "rl")
    config.write_text(f"{CONFIG_OF}rl\nmax_stepz = 3\n")
    with pytest.raises(UserError, match=r"unknown key max_stepz in .*: did you mean max_steps\?$"):
        parse(RLConfig, ["@", str(config)], "rl")
    config.write_text("count_words = true\n")
    with pytest.raises(UserError, match=r"unknown key count_words in .*no key is similar"):
        parse(RLConfig, ["@", str(config)], "rl")


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Add tables of an extension to RunConfig."""

    def extended(place: str = "run", config_class: type = RunConfig, **tables: Any) -> Any:
        monkeypatch.setattr("hone.config.base.ADDED", settings.ADDED)
        monkeypatch.setattr("hone.config.base.gathered", lambda table, core: tables.get(table, {}))
        return with_keys(place)(config_class)

    monkeypatch.setattr(settings, "ADDED", dict(settings.ADDED))
    return extended


def key(kind: str, default: Any) -> Key:
    return Key(kind, default, "A key.", "hone.extensions.alarms.extension")


@pytest.mark.needs("alarms")
def test_a_run_from_before_an_extension_was_installed_goes_on_with_the_keys_default(added: Callable[..., Any]):
    kinds = {"words": ("bool", False), "depth": ("int", 3), "rate": ("float", 0.5), "text": ("str", "a")}
    keys = {f"run.{name}": key(*kind) for name, kind in kinds.items()}
    extended = added(KEYS=keys | {"run.more": key("AlarmsConfig", {}), "run.none": key("AlarmsConfig", None)})
    before = flat(tomllib.loads(run_toml(RunConfig(), "sft")))
    assert not {"words", "depth", "more.window"} & before.keys() and changes(before, extended(), {}) == []
    changed = extended(words=True, depth=4, more={"window": 7})
    assert [str(one) for one in changes(before, changed, {})] == [
        "depth (3, now 4)", "more.window (10, now 7)", "words (false, now true)"
    ]  # fmt: skip


def test_the_page_lists_every_socket():
    source = "".join(path.read_text() for path in (ROOT / "src" / "hone").rglob("*.py"))
    assert set(re.findall(r"^\| `([A-Z]+)` ", PAGE, re.MULTILINE)) == set(re.findall(r'gathered\("([A-Z]+)"', source))


@pytest.mark.wheel
@pytest.mark.skipif(BIN is None, reason="there is no environment to install it into: make test-wheel")
def test_the_package_of_the_page_is_built_installed_and_used(tmp_path: Path):
    wheels, python = tmp_path / "wheels", Path(BIN or "") / "python"
    pip = ["-m", "pip", "--disable-pip-version-check", "--quiet"]
    alone = ["--no-deps", "--no-index"]
    package = write_package(tmp_path / "package")
    built = run(sys.executable, *pip, "wheel", *alone, "--no-build-isolation", "-w", wheels, package, cwd=tmp_path)
    assert built.returncode == 0, built.stderr
    (wheel,) = wheels.iterdir()

    def hone(*words: str) -> str:
        done = run(python.with_name("hone"), *words, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "count-words" not in hone("--help")
    assert run(python, *pip, "install", *alone, wheel, cwd=tmp_path).returncode == 0
    try:
        assert "  count-words " in hone("--help") and "--[no-]count-words" in hone("rl", "--help", "all")
        said = hone("rl", *TINY.split(), "--max-steps", "1", "--count-words")
        (observed,) = re.findall(r"^step 0: .* words a completion$", said, re.MULTILINE)
        assert hone("count-words", "o").splitlines() == [observed]
        resumed = hone("rl", "@", "o/config.toml", "--resume", "--max-steps", "2")
        assert len(re.findall(r"^step 1: .* words a completion$", resumed, re.MULTILINE)) == 1
        assert "step 2: " not in resumed and len(hone("count-words", "o").splitlines()) == 2
        assert "verified" in hone("verify", "o")
        few = ["-n", "2", "-r", "1", "--max-tokens", "4", "-a", '{"most": 3}']
        assert "words:cat" in hone("eval", "words:cat", "-m", "hone/tiny", *few)
    finally:
        assert run(python, *pip, "uninstall", "--yes", "hone-words", cwd=tmp_path).returncode == 0
    for words in (["verify", "o"], ["rl", "@", "o/config.toml", "--resume"]):
        gone = run(python.with_name("hone"), *words, cwd=tmp_path)
        assert gone.returncode == 2 and "it may belong to an extension that is not installed" in gone.stderr
    gone = run(python.with_name("hone"), "eval", "words:cat", "-m", "hone/tiny", cwd=tmp_path)
    assert gone.returncode == 2 and "install the extension that brings it" in gone.stderr
