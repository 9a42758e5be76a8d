"""Roles of a run on the machines of a Ray cluster. Imports Ray only where one is used (extra `ray`)."""
