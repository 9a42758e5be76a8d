"""Roles of a run on the machines of a Ray cluster. Imports Ray only if one is used (extra `ray`)."""
