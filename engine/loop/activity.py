"""What an engine loop is doing and whether it makes progress, to be read from another thread."""

from __future__ import annotations


class Activity:
    """`what` the loop does in words, empty while it waits; `num_marks` grows with every sign of progress: a command, a
    step, a chunk, a layer of a forward, a measured piece. Only the loop writes, one assignment at a time: no lock."""

    def __init__(self) -> None:
        self.what = "starting"
        self.num_marks = 0

    def mark(self) -> None:
        self.num_marks += 1

    def begin(self, what: str) -> None:
        """Set what the loop does from now on."""
        self.what = what
        self.mark()

    def rest(self) -> None:
        """Note that the loop waits for a command, or for the pace of a run."""
        self.what = ""
        self.mark()
