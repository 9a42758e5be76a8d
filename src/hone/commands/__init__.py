"""What `hone COMMAND` does: check, work, report. `hone.cli` has the table of the functions."""
