"""The one exception whose text is meant for people."""


class UserError(Exception):
    """Bad input. The text says what is wrong, where, and what to do; entry points print it
    without a traceback and exit with status 2."""
