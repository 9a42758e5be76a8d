"""Runs a model's code in processes without rights."""
