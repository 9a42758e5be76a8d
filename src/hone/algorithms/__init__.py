"""Advantages, losses and off-policy corrections: pure functions, with formula and source in the docstring."""
