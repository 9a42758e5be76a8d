"""Re-executing what a run recorded: replay, verify, diff. Nothing here writes into a run."""
