"""Typed configs: pydantic models, one module per command plus shared pieces. Importing them never imports torch."""
