"""One module per command: preflight, work, report."""
