"""Numbers in words."""


def counted(number: int, one: str, several: str = "") -> str:
    """`1 step`, `1,057 steps`; `several` is the plural, if it is not `one` with an s."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def step_numbers(first: int, last: int) -> str:
    """`step 0`, `steps 0–205`: numbers, as the counter in the top bar has them, and no count: the first one is 0."""
    return f"step {first:,}" if first == last else f"steps {first:,}–{last:,}"


def significant(value: float, digits: int) -> str:
    """A finite number with that many significant digits, zeros at the end as well: `0.100`, `2.50`, `1.00e-05`. Only 0
    itself is `0`."""
    return f"{value:#.{digits}g}".replace(".e", "e").rstrip(".") if value else "0"
