"""The run card: a run's settings and results, their uncertainty, and how to repeat them, on one page."""
