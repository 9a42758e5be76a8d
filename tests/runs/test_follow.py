"""Following the files of a run while they grow."""

import io
import threading
import time
from pathlib import Path

import pytest
from run_folders import held, make_run, metrics, write_lines

from hone.errors import UserError
from hone.runs import follow as module
from hone.runs.files import write_file
from hone.runs.follow import follow
from hone.runs.summary import summarize
from hone.runs.view import Rewound, Tail


def test_a_tail_gives_whole_lines_once(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    tail = Tail(path)
    assert tail.new() == []
    path.write_text('{"step": 0}\n{"step": 1}\n{"st')
    assert tail.new() == [{"step": 0}, {"step": 1}]
    assert tail.new() == []
    with open(path, "a") as file:
        file.write('ep": 2}\n')
    assert tail.new() == [{"step": 2}]
    with open(path, "a") as file:
        file.write("garbage\n")
    with pytest.raises(UserError, match=r"log\.jsonl, line 4, is damaged \(.+\): fix or delete that line"):
        tail.new()


@pytest.mark.parametrize(
    "change",
    [
        lambda path: write_file(path, '{"step": 0}\n{"step": 1}\n{"step": 1}\n'),  # another file of that name
        lambda path: path.write_text(""),
        lambda path: path.unlink(),
    ],
)
def test_a_tail_notices_a_log_that_was_rewound(tmp_path: Path, change) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 0}\n{"step": 1}\n')
    tail = Tail(path)
    tail.new()
    change(path)
    with pytest.raises(Rewound):
        tail.new()


def test_a_run_is_shown_from_its_last_step_on_until_nobody_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = make_run(tmp_path / "run", "running", steps=2, max_steps=4), io.StringIO()
    monkeypatch.setattr(module, "POLL", 0.02)
    monkeypatch.setattr("sys.stdout", out)
    with held(run) as process:
        watcher = threading.Thread(target=follow, args=(summarize(run), "auto"))
        watcher.start()

        def wait_for(text: str) -> None:
            while text not in out.getvalue():
                assert watcher.is_alive()
                time.sleep(0.01)

        wait_for("step 2/4")
        event = {"kind": "checkpoint", "step": 2, "time": "2026-01-02T03:04:05+00:00"}
        write_lines(run / "events.jsonl", [event, event | {"kind": "weights"}], "a")
        write_lines(run / "metrics.jsonl", [metrics("rl", 2), metrics("rl", 3)], "a")
        write_lines(run / "timings.jsonl", [{"step": 2, "time/step": 0.5}, {"step": 3, "time/step": 0.25}], "a")
        wait_for("step 4/4")
        process.kill()
        process.wait()
        watcher.join(300)
    assert not watcher.is_alive()
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("step 2/4  reward 0.100  100 tokens/s  0.50 s/step")
    assert "held out, at step 2: reverse-text reward 0.250" in lines
    assert sum("checkpoint at step 2" in line for line in lines) == 1 and "weights" not in out.getvalue()
    assert sum(line.startswith("step 4/4  reward 0.300  0.25 s/step") for line in lines) == 1
    assert "step 1/4" not in out.getvalue()
