"""Advantages, losses and off-policy corrections: pure functions, one idea per file, formula and source in the
docstring.
"""
