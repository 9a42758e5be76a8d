"""Rewards from a language model or a server; a teacher's scores."""
