"""Alarms of a run: what should make its user look."""
