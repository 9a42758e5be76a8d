"""Alarms of a run: problems that its user should look at."""
