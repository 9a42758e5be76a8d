"""Re-executes and re-scores recorded runs: replay, verify, diff, regrade. Writes nothing into a run."""
