"""Runs code of a model, in processes without rights."""
