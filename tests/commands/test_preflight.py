"""What `rl` does before step 0: runs that must not start leave no trace, sound ones are as they would be without."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hone.cli import main
from hone.runs import Run

pytestmark = pytest.mark.audit

SAYS = """
import time
from pathlib import Path

from hone.environments import AnswerParser, SingleTurnEnv, answer_rubric, inline

PARSER = AnswerParser(str.strip)


def correctness(completion, answer):
    began = time.process_time()
    while time.process_time() - began < SECONDS:
        pass
    return float(PARSER.parse_answer(completion) == answer)


class Says(SingleTurnEnv):
    answer_is_exact = True

    def reference(self, example):
        return PARSER.wrap(WRAPPED(example.answer))


def rows():
    with Path("reads.txt").open("a") as log:
        log.write("read\\n")
    return [{"question": f"Say {word}", "answer": word} for word in ("apple", "river")]


def load_environment(broken: bool = False):
    global WRAPPED
    WRAPPED = (lambda text: text[::-1]) if broken else str
    return Says(id="says", parser=PARSER, rubric=answer_rubric(correctness), dataset=rows)
"""


@pytest.fixture
def task(tmp_path, monkeypatch) -> Path:
    """The file of a task in the current folder, quick and sound."""
    file = tmp_path / "says.py"
    file.write_text(SAYS.replace("SECONDS", "0"))
    monkeypatch.chdir(tmp_path)
    return file


def words(model: Path, *flags: str) -> list[str]:
    base = ["rl", "--model.name", str(model), "--max-steps", "1", "--seq-len", "256", "--display", "plain"]
    base += ["--orchestrator.batch-size", "4", "--orchestrator.rollouts-per-example", "2"]
    return [*base, "--orchestrator.sampling.max-tokens", "24", "--orchestrator.env.id", "says", *flags]


def rl(model: Path, *flags: str) -> int:
    return main(words(model, *flags))


def audit_events(folder: str) -> list[int]:
    return [event["step"] for event in Run(folder).events() if event["kind"] == "audit"]


def test_a_run_is_the_same_with_its_audit_and_without(task, tiny_model_dir):
    """The data is read once."""
    assert rl(tiny_model_dir) == 0
    assert Path("reads.txt").read_text().count("read") == 1
    assert rl(tiny_model_dir, "--no-audit", "--output-dir", "bare") == 0
    for name in ("metrics.jsonl", "hashes.jsonl", "rollouts/step_000000.parquet"):
        assert Path("outputs", name).read_bytes() == Path("bare", name).read_bytes()
    assert json.loads(Path("outputs/audit.json").read_text())["verdict"] != "skipped"


def test_a_resume_is_audited_if_it_has_another_task(task, tiny_model_dir, capsys):
    """A run without a checkpoint begins anew, with whatever task is named then."""
    assert rl(tiny_model_dir) == 0
    first = Path("outputs/audit.json").read_bytes()
    other = ("--max-steps", "2", "--orchestrator.env.args", '{"broken": true}', "--resume")
    assert rl(tiny_model_dir, *other) == 2
    said = capsys.readouterr().err
    assert "the reward of says fails its audit: reference: 2 of 2 references" in said
    assert "See it with: hone audit says -a '{\"broken\": true}'" in said
    assert Path("outputs/audit.json").read_bytes() == first and not Path("outputs/superseded").exists()
    assert rl(tiny_model_dir, *other, "--no-audit") == 0
    assert json.loads(Path("outputs/audit.json").read_text())["verdict"] == "skipped"


def test_a_branch_has_the_audit_of_its_parent(task, tiny_model_dir):
    assert rl(tiny_model_dir, "--ckpt") == 0
    branch = ("--max-steps", "2", "--output-dir", "branch", "--resume.dir", "outputs")
    assert rl(tiny_model_dir, *branch) == 0
    assert Path("branch/audit.json").read_bytes() == Path("outputs/audit.json").read_bytes()
    assert audit_events("branch") == [0]


def test_a_branch_with_another_task_is_audited(task, tiny_model_dir, capsys):
    assert rl(tiny_model_dir, "--ckpt") == 0
    branch = ("--max-steps", "2", "--output-dir", "branch", "--resume.dir", "outputs", "--allow-drift")
    assert rl(tiny_model_dir, *branch, "--orchestrator.env.args", '{"broken": true}') == 2
    assert "fails its audit: reference" in capsys.readouterr().err
    assert not Path("branch").exists()


def test_a_grader_that_takes_its_time_is_given_that_of_the_run(task, tiny_model_dir, monkeypatch):
    """Slower than the audit's own deadline, but not than the run's: it is no reason to refuse a run."""
    monkeypatch.setattr("hone.commands.preflight.DEADLINE", 0.05)
    task.write_text(SAYS.replace("SECONDS", "0.1"))
    assert rl(tiny_model_dir) == 0
    assert not [f for f in findings("outputs/audit.json") if f["name"] == "hangs"]


def test_a_reference_at_which_the_grader_hangs_is_refused_with_the_runs_own_limit(task, tiny_model_dir, capsys):
    task.write_text(SAYS.replace("SECONDS", "1000"))
    assert rl(tiny_model_dir, "--orchestrator.grading.timeout", "0.3") == 2
    said = capsys.readouterr().err
    assert "fails its audit: hangs: " in said and "grading.timeout allows 0.3 s of the processor" in said


def test_in_the_background_a_run_is_refused_before_it_begins(task, tiny_model_dir):
    argv = words(tiny_model_dir, "--orchestrator.env.args", '{"broken": true}', "--detach")
    done = subprocess.run([sys.executable, "-m", "hone.cli", *argv], capture_output=True, text=True)
    assert done.returncode == 2 and "fails its audit: reference" in done.stderr
    assert not Path("outputs").exists()


def test_ctrl_c_ends_an_audit_and_all_of_its_processes(task):
    task.write_text(SAYS.replace("SECONDS", "0.5"))
    # In the background of a shell SIGINT is ignored.
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); from hone.cli import main; "
    argv = [sys.executable, "-c", code + "sys.exit(main(['audit', 'says', '-n', '2']))"]
    running = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    marker = f"HONE_GRADER={running.pid}-".encode()
    until(lambda: marked(marker), "the task is graded")
    running.send_signal(signal.SIGINT)
    out, error = running.communicate(timeout=300)
    assert (running.returncode, out, error) == (130, "", "")
    until(lambda: not marked(marker), "its processes have ended")


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.05)


def marked(marker: bytes) -> list[str]:
    """The processes that have this in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if marker in (folder / "environ").read_bytes():
                found.append(folder.name)
        except OSError:
            continue
    return found


def findings(file: str) -> list[dict]:
    return [finding for check in json.loads(Path(file).read_text())["checks"] for finding in check["findings"]]
