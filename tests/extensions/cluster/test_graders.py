"""A task's code on another machine: what a grading process there loads, and under which paths."""

from __future__ import annotations

import errno
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from processes import until

import hone
from hone import digests
from hone.config.shared import GradingConfig
from hone.environments import load_environment
from hone.grading.pool import Stopped
from hone.runs.files import NEW_PREFIX
from hone.types import Outcome

pytestmark = pytest.mark.cluster


def arguments(folder: Path, file: Path) -> list:
    return ["my-task", {"a": 1}, str(folder), [str(folder), "/nowhere"], {str(file): digests.of_source(file)}, 10.0]


@pytest.mark.parametrize("there", ["X = 1\n", None, "X = 2\n"], ids=["shared", "absent", "another version"])
def test_code_that_a_node_does_not_have_is_written_to_its_scratch_folder(tmp_path, there):
    from hone.extensions.cluster.graders import arguments_for_node

    (file := tmp_path / "task" / "my_task.py").parent.mkdir()
    file.write_text("X = 1\n")
    scratch, given = tmp_path / "scratch", (arguments(file.parent, file), {str(file): file.read_bytes()})
    file.unlink() if there is None else file.write_text(there)
    env_id, kwargs, folder, path, sources, timeout = arguments_for_node(*given, scratch)
    assert (env_id, kwargs, timeout) == ("my-task", {"a": 1}, 10.0)
    shared = there == "X = 1\n"
    assert folder == path[0] == (f"{file.parent}" if shared else f"{scratch}{file.parent}")
    assert "/nowhere" not in path and set(sys.path) <= set(path) and scratch.exists() != shared
    ((written, digest),) = sources.items()
    assert Path(written).read_text() == "X = 1\n" and digests.of_source(Path(written)) == digest
    gone = tmp_path / "gone"
    assert arguments_for_node(["my-task", {}, str(gone), [], {}, 10.0], {}, scratch)[2] == f"{scratch}{gone}"
    assert not gone.exists()


def test_a_version_appears_whole_on_a_node_or_not_at_all(tmp_path, monkeypatch):
    from hone.extensions.cluster.host import put_files

    session = tmp_path / "session"
    (killed := session / f"{NEW_PREFIX}step_1").mkdir(parents=True)
    (killed / "half").touch()
    for step in range(1, 4):
        put_files(session / f"step_{step}", {"model.safetensors": b"x" * step, "parts/1": b"y"})
    assert not killed.exists() and not (session / "step_1").exists(), "a version that no server reads any more is gone"
    assert (session / "step_3" / "model.safetensors").read_bytes() == b"xxx"

    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        put_files(session / "step_4", {"model.safetensors": b"x"})
    assert sorted(path.name for path in session.glob("*step*")) == ["step_2", "step_3"]


TASK = """
import time
from pathlib import Path
from hone.environments import Rubric, SingleTurnEnv

while not Path({go!r}).exists():
    time.sleep(0.01)

def fine(completion): return 1.0

def load_environment(a):
    Path({loaded!r}).touch()
    return SingleTurnEnv(rubric=Rubric([fine]), dataset=[])
"""


def test_a_process_that_a_round_has_left_while_it_started_is_ready_for_the_next(nodes, tmp_path):
    from hone.extensions.cluster.graders import RemoteProcess
    from hone.extensions.cluster.nodes import connect

    cluster, go, loaded = nodes(1), tmp_path / "go", tmp_path / "loaded"
    (file := tmp_path / "my_task.py").write_text(TASK.format(go=str(go), loaded=str(loaded)))
    connect(cluster.address, "test")
    import ray

    try:
        script = Path(hone.__file__).parent / "environments" / "worker_main.py"
        process = RemoteProcess(sys.executable, script, arguments(tmp_path, file), 2**30, {})
        (over, end), (never, _) = os.pipe(), os.pipe()
        with ThreadPoolExecutor() as threads:
            first = threads.submit(process.get_ready, over)
            until(lambda: process._is_placed and cluster.all[0].pids("process_main.py"))
            os.write(end, b"x")
            with pytest.raises(Stopped):
                first.result()
        go.touch()
        until(loaded.exists)
        assert process.get_ready(never) is None and process.ready
        process.finish()
    finally:
        ray.shutdown()


MORTAL = """
import os
import time
from hone.environments import Rubric, SingleTurnEnv

def value(completion):
    text = completion[-1]["content"]
    if text == "dies":
        os._exit(3)
    if text == "hangs":
        time.sleep(600)
    return float(text)

def load_environment():
    rows = [{"prompt": "a", "answer": "b"}] * 4
    return SingleTurnEnv(rubric=Rubric([value]), dataset=rows)
"""


@pytest.mark.parametrize("workers", [2, 3], ids=["room for all", "no room for one"])
def test_a_question_sent_ahead_of_one_that_kills_or_hangs_is_asked_again(nodes, tmp_path, monkeypatch, workers):
    from hone.extensions.cluster.graders import RemoteProcess
    from hone.extensions.cluster.nodes import connect

    (tmp_path / "mortal_task.py").write_text(MORTAL)
    monkeypatch.chdir(tmp_path)
    was_sent: list[bool] = []

    class Watched(RemoteProcess):
        def ask(self, *arguments):
            was_sent.append(self._sent is not None)
            return super().ask(*arguments)

    connect(nodes(2).address, "test")
    import ray

    env = load_environment("mortal-task")
    env.make_process = Watched
    env.use_workers(GradingConfig(workers=workers, timeout=1))
    try:
        texts = ["dies" if n in (5, 6, 15) else "hangs" if n == 10 else str(n) for n in range(30)]
        with ThreadPoolExecutor() as threads:
            graded = threads.submit(env.grade_many, [(env.split("train")[0], text) for text in texts], 0)
            scores = graded.result(timeout=300)
    finally:
        env.close_workers()
        ray.shutdown()
    assert sum(was_sent) >= 10, "most of those behind which others wait"
    for text, score in zip(texts, scores, strict=True):
        if text == "dies":
            assert score.outcome is Outcome.GRADER_ERROR and "ended with 3" in score.detail
        elif text == "hangs":
            assert score.outcome is Outcome.GRADER_TIMEOUT
        else:
            assert score.reward == float(text)
