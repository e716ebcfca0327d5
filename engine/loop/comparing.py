"""Runs a comparison beside the session: the other side follows every step, and differences are reported."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from engine.errors import Cancelled, InputError
from engine.loop.inbox import Inbox
from engine.loop.reporter import Reporter
from engine.wire.commands import EndComparison, StartComparison
from engine.wire.comparison import ComparedStep, ComparisonEnded, ComparisonScanned, OtherStep
from engine.wire.pictures import Picture, PictureRequest, Side

if TYPE_CHECKING:
    from engine.analysis.comparison import Comparison
    from engine.model.loader import LoadedModel
    from engine.opened.file import OpenedSnapshot
    from engine.session.session import Session
    from engine.spec.model import ModelSpec


CATCHING_UP = "The other run of the comparison catches up"


class Comparing:
    """Holds at most one comparison. `is_behind`: its other side was interrupted, and catches up when the loop is
    idle."""

    def __init__(self, reporter: Reporter, inbox: Inbox) -> None:
        self._reporter, self._inbox = reporter, inbox
        self._comparison: Comparison | None = None
        self._asked: StartComparison | None = None
        self._is_scanned = False
        self.is_behind = False
        self._newest: ComparedStep | None = None

    @property
    def is_on(self) -> bool:
        """Whether a comparison is running."""
        return self._comparison is not None

    def differs(self, step: int, seq_id: int) -> bool | None:
        """Whether the other run ranks another token first at that step; None where the step or the sequence is not
        compared, or the other run was given other tokens."""
        if self._asked is None or self._asked.seq_id != seq_id or self._newest is None or self._newest.step != step:
            return None
        agrees = None if self._newest.divergence is not None else self._newest.top1_agrees
        return None if agrees is None else not agrees

    def start(
        self, worked_on: Session | OpenedSnapshot, command: StartComparison, held: LoadedModel | None = None
    ) -> None:
        """Start another comparison. The one before is kept until the new one is ready, and stays if that fails or is
        cancelled. `worked_on` is the session or opened file that is compared; `held` the loaded model, if a file is
        open."""
        from engine.analysis.comparison import comparison_of
        from engine.opened.file import OpenedSnapshot

        self._reporter.begin("Starting the other run")
        comparison = comparison_of(worked_on, command, self._load, OpenedSnapshot, held)
        try:
            for found in comparison.catch_up(self._inbox.check_uncancelled):
                self._inbox.check_uncancelled()
                if isinstance(found, tuple):
                    self._reporter.progress("The other run reads the same tokens", *found)
        except BaseException:
            comparison.close()
            raise
        if self._comparison is not None:
            self._comparison.close()
        self._comparison, self._asked, self.is_behind, self._is_scanned = comparison, command, False, False
        self._reporter.reply(comparison.started(command.against))

    def _load(self, spec: ModelSpec) -> LoadedModel:
        from engine.model.loader import load

        return load(spec, self._reporter.progress)

    def end(self, reason: str = "") -> None:
        """End the comparison and report it; `reason` is empty if a command asked for it."""
        if self._comparison is None:
            return
        self._comparison.close()
        self._comparison = self._asked = None
        self.is_behind = False
        ended = ComparisonEnded(reason)
        self._reporter.emit(ended) if reason else self._reporter.reply(ended)  # with a reason it answers no command

    def follow(self, session: Session) -> None:
        """Have the other side compute the tokens that are new. Ends the comparison if that fails, or if what it
        compares is gone."""
        if self._comparison is None or self._asked is None:
            return
        against = self._asked.against
        steps = (against.step, against.of) if isinstance(against, OtherStep) else ()
        needs_live = len(steps) < 2 or steps[1] is None
        if needs_live and self._asked.seq_id not in session.live.ids:
            self.end("its sequence is gone")
            return
        for step in steps:
            if step is not None and (why := self._why_gone(session, step, needs_live=needs_live)):
                self.end(why)
                return
        try:
            self._catch_up(self._comparison)
        except Cancelled:
            self.is_behind = True
        except InputError as error:
            self.end(str(error).rstrip("."))
        except Exception as error:
            self._reporter.fail(error, "the other run of a comparison", is_asked=False)
            self.end("its other run failed")

    def _why_gone(self, session: Session, step: int, *, needs_live: bool) -> str:
        """Why a step can no longer be compared with; empty where it can. `needs_live`: it is compared with the live
        one, and not with another step."""
        tree = session.history.tree
        if step not in tree:
            return f"step {step} was deleted"
        is_earlier = self._comparison is not None and self._comparison.compares_with_now
        if not needs_live:
            return ""
        is_on_path = tree.is_on_path(step, session.last_step)
        if is_earlier and not is_on_path:
            return f"step {step} is not before the live one any more"
        return f"the branch with step {step} is the live one now" if is_on_path and not is_earlier else ""

    def _catch_up(self, comparison: Comparison) -> None:
        """Have the other side catch up and report each step. One step is always made; before every further one waiting
        commands go first. Raises `Cancelled` if a command interrupts a prefill."""
        is_first, work = True, self._reporter.work
        check = partial(self._inbox.check_uninterrupted, StartComparison, EndComparison)
        try:
            for found in comparison.catch_up(check):
                if not isinstance(found, tuple):
                    self._is_scanned = False
                    self._newest = found
                    self._answer(found)
                if comparison.is_behind and self._inbox.has_waiting:
                    break
                if comparison.is_behind and not is_first:
                    self._reporter.progress(CATCHING_UP, comparison.b.num_tokens, comparison.a.num_tokens)
                is_first = False
        finally:
            self._reporter.work = work
        self.is_behind = comparison.is_behind

    def _answer(self, event: ComparedStep | ComparisonScanned) -> None:
        """Send an event as an answer to the command that started the comparison."""
        assert self._asked is not None
        self._reporter.answer(self._asked.id, event)

    def stop(self) -> None:
        """End the comparison on a cancel, if its other side is still catching up."""
        if self.is_behind:
            self.end("it was stopped")

    @property
    def has_more(self) -> bool:
        """Whether there is background work: catching up, or comparing all rows."""
        return self._comparison is not None and (self.is_behind or not self._is_scanned)

    def advance(self, session: Session | None) -> None:
        """Do background work: catch up, then compare all rows."""
        if self.is_behind and session is not None:
            self.follow(session)
            self._reporter.send_status()
        else:
            self._scan()

    def restart(self, session: Session) -> None:
        """Report the comparison from its beginning again, because the session went to another step or changed its
        cache."""
        self.follow(session)
        if self._comparison is not None and self._asked is not None:
            self._is_scanned = False
            self._reporter.emit(self._comparison.started(self._asked.against))

    def _scan(self) -> None:
        """Compare all rows once and report it; if a command interrupts that, it is begun again later."""
        assert self._comparison is not None
        try:
            if (found := self._comparison.scan(self._inbox.check_nothing_waits)) is not None:
                self._answer(found)
        except Cancelled:
            return
        except Exception as error:
            self._reporter.fail(error, "the rows of a comparison", is_asked=False)
            self.end("its rows cannot be compared")
        self._is_scanned = True

    def pictures_of(self, side: Side) -> Callable[[PictureRequest], Picture]:
        """What takes pictures of one side or of the difference."""
        if self._comparison is None:
            raise InputError("There is no other run to view: start a comparison first.")
        return partial(self._comparison.picture, side=side)
