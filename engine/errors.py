"""The one exception that is addressed to the person at the keyboard."""


class InputError(ValueError):
    """Bad input, in one plain sentence: the cause, the thing it concerns, and what to do about it."""


class RowsMissing(InputError):
    """A question about rows that are not held any more; it can be answered with rows rebuilt from the tokens."""
