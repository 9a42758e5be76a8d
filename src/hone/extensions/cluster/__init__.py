"""Roles of a run on the machines of a Ray cluster. Imports Ray only if a cluster is used (extra `ray`)."""
