"""Numbers of things, in words."""


def counted(number: int, one: str, several: str = "") -> str:
    """`1 step`, `1,057 steps`; `several` is the plural, if it is not `one` with an s."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"
