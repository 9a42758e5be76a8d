"""The run card: a run's settings and results, with how sure they are and how to repeat them, on one page."""
