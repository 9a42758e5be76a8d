"""Re-executing and re-scoring what a run recorded: replay, verify, diff, regrade. Nothing here writes into a run."""
