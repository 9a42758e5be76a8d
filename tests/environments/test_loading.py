from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hone import digests, trust
from hone.environments import load_environment
from hone.errors import UserError

TASK = """
from hone.environments import Rubric, SingleTurnEnv

def exact(completion, answer):
    return 1.0

def load_environment(size=1, label="{label}"):
    return SingleTurnEnv(rubric=Rubric([exact]), system_prompt=label)
"""


def write(path: Path, text: str | None = None, label: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(TASK.replace("{label}", label) if text is None else text)
    return path


@pytest.mark.parametrize("place", ["my_first_task.py", "my_first_task/__init__.py", "my_first_task/my_first_task.py"])
def test_the_id_is_the_module_name_with_dashes_of_a_file_or_a_folder(here: Path, place: str):
    write(here / "environments" / place, label=place)
    env = load_environment("my-first-task", size=2)
    assert (env.id, env.system_prompt) == ("my-first-task", place)
    assert "my_first_task" in sys.modules


def test_environments_comes_before_the_current_directory_and_both_before_installed_packages(here: Path):
    for place in ("some_task.py", "environments/some_task.py", "environments/reverse_text.py"):
        assert load_environment(write(here / place, label=place).stem).system_prompt == place


def test_a_task_file_does_not_stand_in_for_the_package_of_its_name(here: Path):
    write(here / "environments" / "safetensors.py", label="task")
    assert load_environment("safetensors").system_prompt == "task"
    import safetensors

    assert "environments" not in str(safetensors.__file__)


TYPED = """
from __future__ import annotations
import typing
from hone.environments import Rubric, SingleTurnEnv
if typing.TYPE_CHECKING:
    from nowhere import Thing

def right(completion): ...

def load_environment(a: int | None = None, b: float = 1, c: bool = True, d: list[int] = (), e=0, f: str | int = 1, **g):
    return SingleTurnEnv(rubric=Rubric([right]))
"""


def test_arguments_of_a_simple_type_are_checked(here: Path):
    write(here / "environments" / "typed_task.py", TYPED)
    load_environment("typed-task", a=None, b=2, c=False, d=[1], e="x", f="x", h=object())
    for name, value, why in (
        ("a", 1.5, "typed-task: a is 1.5: input should be a valid integer"),
        ("a", True, "a is True: input should be a valid integer"),
        ("b", "1", "b is '1': input should be a valid number"),
        ("b", None, "b is None: input should be a valid number"),
        ("c", 1, "c is 1: input should be a valid boolean"),
        ("f", [], r"f is \[\]: input should be a valid string"),
    ):
        with pytest.raises(UserError, match=why):
            load_environment("typed-task", **{name: value})
    write(here / "environments" / "untyped_task.py", TYPED.replace("e=0", "e: Thing = 0"))
    load_environment("untyped-task", a="unknown types elsewhere: nothing is checked")


@pytest.mark.parametrize(
    ("env_id", "why"),
    [
        ("math", "names a module of the standard library"),
        ("someone/reverse-text", "is not an environment id.*did you mean reverse-text"),
        ("../secret", "is not an environment id"),
        ("", "is not an environment id"),
        ("revers-text", "no environment 'revers-text': did you mean reverse-text"),
        ("numpy", "'numpy' is not an environment.*no function load_environment"),
    ],
)
def test_ids_that_are_none(here: Path, env_id: str, why: str):
    write(here / "environments" / "math.py")
    (here / "folder.py").mkdir()
    (here / "gone.py").symlink_to("nowhere.py")
    with pytest.raises(UserError, match=why):
        load_environment(env_id)


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("odd", "x = 1", "has no function load_environment"),
        ("odd", "def load_environment(): return None", "returned a NoneType"),
        ("odd", "import not_installed", "'mistaken-odd' could not be imported: No module named 'not_installed'"),
        ("syntax", "def load_environment():\n    return (\n", r"syntax\.py, line 2: SyntaxError: "),
        ("name", "from hone.environments import Rubrik\n", r"name\.py, line 1: ImportError: "),
        ("file", "\n\ndef load_environment():\n    open('nowhere')\n", r"file\.py, line 4: FileNotFoundError: "),
    ],
)
def test_a_file_that_is_no_environment_is_named_and_a_mistake_with_its_line(here: Path, name, text: str, why: str):
    write(here / "environments" / f"mistaken_{name}.py", text)
    with pytest.raises(UserError, match=why):
        load_environment(f"mistaken-{name}")


def checked(env_id: str, *recorded: str, trusted: bool = False, run: str = "run"):
    """The task, as a command loads it that works with a run of these digests."""
    with trust.opened_run(Path(run), {"sources": {f"environment/{i}": one for i, one in enumerate(recorded)}}, trusted):
        return load_environment(env_id)


def test_only_a_local_task_file_must_be_that_of_the_run(here: Path, capsys: pytest.CaptureFixture[str]):
    file = write(here / "some_task.py")
    for recorded in ([], ["0" * 64]):
        with pytest.raises(UserError, match=rf"{file} here .* pass --trust-local-task"):
            checked("some-task", *recorded)
    same = digests.of_source(file)
    with pytest.raises(UserError, match=r"inside the run.* pass --trust-local-task"):
        checked("some-task", same, run=".")
    assert "some_task" not in sys.modules
    checked("reverse-text", "0" * 64)  # hone's own: what differs there is found later
    for _ in range(2):
        checked("some-task", "0" * 64, same)
    assert capsys.readouterr().err.splitlines() == [f"note: the task some-task is {file}"]
    checked("some_task", "0" * 64, trusted=True)
    assert "which is not the file that the run was made with" in capsys.readouterr().err


def test_the_digest_of_a_package_covers_the_file_that_its_loader_comes_from(here: Path):
    write(here / "some_task" / "__init__.py", "from some_task.inner import load_environment")
    inner = write(here / "some_task" / "inner.py")
    recorded = load_environment("some-task").digests([])["environment"]
    checked("some-task", recorded)
    write(inner, inner.read_text() + "# edited")
    with pytest.raises(UserError, match="is not the file that the run was made"):
        checked("some-task", recorded)


def test_tasks_of_one_process_do_not_share_a_file_by_its_name(here: Path, monkeypatch: pytest.MonkeyPatch):
    for number in "12":
        folder = here / number
        write(folder / f"task{number}.py", TASK.replace("{label}", number).replace("1.0", "common.X"))
        write(folder / "common.py", f"X = {number}")
        write(folder / f"task{number}.py", "import common\n" + (folder / f"task{number}.py").read_text())
    monkeypatch.chdir(here / "1")
    load_environment("task1")
    monkeypatch.chdir(here / "2")
    with pytest.raises(UserError, match=r"2/common\.py can't be imported: .* 'common' from .*1/common\.py"):
        load_environment("task2")


USING = "import helping\n" + TASK.replace("return 1.0", "return helping.value()").replace("{label}", "")


def test_a_task_may_import_what_lies_beside_it_and_is_another_one_when_that_changes(here: Path):
    write(here / "environments" / "using.py", USING)
    write(here / "environments" / "helping.py", "import further\n\ndef value():\n    return further.VALUE\n")
    further = write(here / "environments" / "further.py", "VALUE = 0.25\n")
    write(here / "environments" / "unused.py", "raise RuntimeError\n")
    env = load_environment("using")
    example = env.example(question="?", answer="!")
    assert env.grade(example, "text").components == {"exact": 0.25}  # in a worker
    env.close_workers()
    digest = env.digests([])["environment"]
    assert digest != digests.of_source(here / "environments" / "using.py")
    checked("using", digest)
    write(further, "VALUE = 0.5\n")
    with pytest.raises(UserError, match="is not the file that the run was made with"):
        checked("using", digest)
    with pytest.raises(UserError, match=r"further\.py was changed while it is in use"):
        env.grade(example, "text")
