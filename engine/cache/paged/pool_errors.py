"""What can go wrong with a pool of pages."""

from __future__ import annotations


class PoolExhausted(RuntimeError):
    """Too few pages are free or cached. Nothing was changed."""

    def __init__(self, num_needed_pages: int, num_available_pages: int) -> None:
        super().__init__(f"{num_needed_pages} pages are needed, but only {num_available_pages} can be taken")
        self.num_needed_pages = num_needed_pages
        self.num_available_pages = num_available_pages


class PoolMisuse(RuntimeError):
    """The caller broke a rule of the pool: freed a free page, shared a page that nobody can find, mixed up tables."""


class PoolCorrupted(RuntimeError):
    """`check()` found the bookkeeping at odds with itself: a defect of the program."""
