"""What a command does with input that it cannot take."""


def fails(capsys, code: int, *fragments: str) -> None:
    """Exit code 2, one sentence on stderr that holds the fragments, no traceback."""
    captured = capsys.readouterr()
    assert code == 2
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1 and "Traceback" not in captured.err
    for fragment in fragments:
        assert fragment in captured.err, captured.err
