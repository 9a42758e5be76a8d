"""Rewards by a language model or a server."""
