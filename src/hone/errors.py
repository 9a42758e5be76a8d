"""Errors that a user can cause. The command line prints them as one sentence and exits with code 2, without a
traceback.
"""


class UserError(ValueError):
    """What was wrong, and what to do instead, in one sentence."""
