"""What the engine raises on purpose: for the person at the keyboard, and when that person asked it to stop."""


class InputError(ValueError):
    """Bad input, in one plain sentence: the cause, the thing it concerns, and what to do about it."""


class RowsMissing(InputError):
    """A question about rows that are not held any more; it can be answered with rows rebuilt from the tokens."""


class Cancelled(Exception):
    """The person asked for the work in hand to stop."""


def first_line(error: BaseException) -> str:
    """What went wrong, short enough for a sentence."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:200]
