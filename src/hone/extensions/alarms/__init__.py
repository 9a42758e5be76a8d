"""Alarms: problems of a run that its user should look at."""
