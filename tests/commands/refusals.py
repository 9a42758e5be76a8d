"""What a command does with input that it cannot take."""


def fails(capsys, code: int, *fragments: str) -> None:
    """Exit code 2, one sentence on stderr that holds the fragments, after notes at most; no traceback."""
    captured = capsys.readouterr()
    assert code == 2
    *notes, error = captured.err.removesuffix("\n").split("\n")
    assert error.startswith("error: ") and all(line.startswith("note: ") for line in notes), captured.err
    for fragment in fragments:
        assert fragment in error, captured.err
