"""Following the files of a run while they grow."""

from pathlib import Path

import pytest

from hone.errors import UserError
from hone.runs.files import write_file
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
