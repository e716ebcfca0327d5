"""What a widget follows, as a declaration, and the one state that it reads from there and shows."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from msgspec import Struct
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import QWidget

from app.models import Models

if TYPE_CHECKING:
    _Widget = QWidget
else:
    _Widget = object

State = TypeVar("State")


class SignalSource(Struct, frozen=True):
    """Signals of one of the `Models`, by their names; what is a part of one stands behind a dot.

    Where the signals carry a kind, `kinds` are those that count; `at_rest` leaves them alone while the engine runs,
    because the next legible step brings them along.
    """

    model: str
    signals: tuple[str, ...] = ("changed",)
    kinds: frozenset[str] = frozenset()
    at_rest: bool = False


EACH_STEP = SignalSource("timeline", ("appended", "filled", "reset"))  # as fast as the window goes
STEPS = SignalSource("timeline", ("legible", "reset"))  # no more often than words can be read
SELECTION = SignalSource("selection")
STATUS = SignalSource("status")
VIEWPORT = SignalSource("viewport")
EDITS = SignalSource("edits")
PHASES = SignalSource("phases")
STOPS = SignalSource("stops", ("changed", "found"))
BOOKMARKS = SignalSource("bookmarks")


def slices(*kinds: str, at_rest: bool = False) -> SignalSource:
    """The newest slices of some kinds."""
    return SignalSource("slices", kinds=frozenset(kinds), at_rest=at_rest)


def measurement(name: str) -> SignalSource:
    """One of the `Measurements`, from its question to its answer."""
    return SignalSource(f"measurements.{name}")


class Reader(Generic[State], _Widget):
    """Mixin of a widget that follows models: it reads them into one frozen state and shows that.

    Named before the widget's class: `class TimelineBar(Reader[Steps], QWidget)`; the constructor ends with
    `self.follow(models)`. Nothing is read while the widget is hidden; when it is shown it reads once. A state that
    equals the one on the screen is not shown again. States should compare cheaply: numbers, strings, tuples, and
    records and slices, which equal only themselves. A bare array does not compare: wrap it with `eq=False`.
    """

    follows: ClassVar[tuple[SignalSource, ...]] = ()
    reads_while_hidden: ClassVar[bool] = False  # for a widget whose reading counts elsewhere

    _state: State | str | None = None
    _is_undescribed = False

    def read(self) -> State | str:
        """The state to be shown, from the models and the widget's own choices, or the sentence why there is none.
        Changes nothing."""
        raise NotImplementedError

    def show_state(self, state: State) -> None:
        """Put a state on the screen."""
        raise NotImplementedError

    def describe(self, state: State) -> None:
        """Say what a state shows in words, for tool tips and screen readers: while the engine runs no more often than
        words can be read."""

    def show_nothing(self, why: str) -> None:
        """Say why there is nothing to show."""

    def want(self, *, is_visible: bool) -> None:
        """Say in `models.viewport` what the engine should send for this widget."""

    @property
    def state(self) -> State | None:
        """What is on the screen; None where nothing is."""
        return None if isinstance(self._state, str) else self._state

    def follow(self, models: Models) -> None:
        """Connect what `follows` declares, and read for the first time."""
        self._models = models
        at_rest = [source for source in self.follows if source.at_rest]
        self._kinds_at_rest = frozenset[str]().union(*(source.kinds for source in at_rest))
        self._kinds = frozenset[str]().union(*(s.kinds for s in self.follows if s not in at_rest))
        for model, signal, has_kind in {(s.model, name, bool(s.kinds)) for s in self.follows for name in s.signals}:
            getattr(attrgetter(model)(models), signal).connect(self._on_kind if has_kind else self._on_told)
        if type(self).describe is not Reader.describe:
            models.timeline.legible.connect(self._on_legible)  # after it is read
        self.refresh()

    def refresh(self) -> None:
        """Read the models, and show what they say unless it is on the screen already."""
        is_visible = self.isVisible()
        if not (is_visible or self.reads_while_hidden):
            return
        self.want(is_visible=is_visible)
        state = self.read()
        if isinstance(state, str):
            if state != self._state:
                self._state = state
                self.show_nothing(state)
        else:
            self._take(state)

    def _take(self, state: State) -> None:
        if state != self._state:
            self._state = state
            self.show_state(state)
            newest = self.state
            if newest is not None and newest is not state:  # showing it resized the widget, which read another one
                self.show_state(newest)
            self._is_undescribed = True
            if not self._models.status.is_running:
                self._describe_now()

    def _on_told(self) -> None:
        self._models.refreshes.ask(self.refresh)

    def _on_legible(self) -> None:
        self._models.refreshes.ask(self._describe_now)

    def _describe_now(self) -> None:
        if self._is_undescribed and self.state is not None:
            self._is_undescribed = False
            self.describe(self.state)

    def show_again(self) -> None:
        """Show even what is on the screen already: the colours are others, or the size."""
        self._state = None
        self.refresh()

    def _on_kind(self, kind: str) -> None:
        if kind in self._kinds or (kind in self._kinds_at_rest and not self._models.status.is_running):
            self._on_told()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.refresh()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self.want(is_visible=False)
