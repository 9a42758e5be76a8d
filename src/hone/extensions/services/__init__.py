"""Rewards, and scores of a teacher, from a language model or another server."""
