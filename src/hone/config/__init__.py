"""Typed configs: pydantic models only, one module per command plus shared pieces. Importing this never imports torch."""
