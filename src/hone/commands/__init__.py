"""The functions of `hone COMMAND`; `hone.cli` has their table."""
