"""The base of widgets that follow models: they declare which, read them into one frozen state, and show that."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from msgspec import Struct
from PySide6.QtGui import QAccessible, QEnterEvent, QHideEvent, QShowEvent
from PySide6.QtWidgets import QWidget

from app.models import Models

if TYPE_CHECKING:
    _Widget = QWidget
else:
    _Widget = object

State = TypeVar("State")


class SignalSource(Struct, frozen=True):
    """Signals of one of the `Models`, by name; `model` may be a dotted path to a part of one.

    If the signals carry a kind, `kinds` are those to react to; with `at_rest` they are ignored while the engine runs,
    because the timeline's next `texts_due` updates the widget.
    """

    model: str
    signals: tuple[str, ...] = ("changed",)
    kinds: frozenset[str] = frozenset()
    at_rest: bool = False


EACH_STEP = SignalSource("timeline", ("appended", "filled", "reset"))  # as often as the window ticks
STEPS = SignalSource("timeline", ("texts_due", "reset"))  # no more often than texts can be read
SELECTION = SignalSource("selection")
STATUS = SignalSource("status")
VIEWPORT = SignalSource("viewport")
EDITS = SignalSource("edits")
PHASES = SignalSource("phases")
BREAKPOINTS = SignalSource("breakpoints", ("changed", "found"))
BOOKMARKS = SignalSource("bookmarks")
DRAFT = SignalSource("draft")


def pictures(*kinds: str, at_rest: bool = False) -> SignalSource:
    """The newest pictures of these kinds."""
    return SignalSource("pictures", kinds=frozenset(kinds), at_rest=at_rest)


def measurement(name: str) -> SignalSource:
    """One of the `Measurements`, with its progress."""
    return SignalSource(f"measurements.{name}")


class Reader(Generic[State], _Widget):
    """Mixin of a widget that follows models: it reads them into one frozen state, and shows that.

    It comes before the widget's class (`class TimelineBar(Reader[Steps], QWidget)`), and the constructor ends with
    `self.follow(models)`. A hidden widget reads nothing; when it is shown it reads once. A state equal to the one shown
    is not shown again, so states should be cheap to compare: numbers, strings, tuples, records and pictures (which
    compare by identity). A bare array cannot be compared: wrap it in a struct with `eq=False`.
    """

    follows: ClassVar[tuple[SignalSource, ...]] = ()
    reads_while_hidden: ClassVar[bool] = False  # for a widget whose reading has an effect while it is hidden

    _state: State | str | None = None
    _is_undescribed = False

    def read(self) -> State | str:
        """Read the state to show from the models and the widget's own choices; or return a sentence why there is none.
        It changes nothing."""
        raise NotImplementedError

    def show_state(self, state: State) -> None:
        """Show a state."""
        raise NotImplementedError

    def describe(self, state: State) -> None:
        """Describe a state in words, for tool tips and screen readers. It is called only while the pointer is on the
        widget or a screen reader listens, and less often than `show_state` while the engine runs."""

    def show_nothing(self, why: str) -> None:
        """Show why there is nothing to show."""

    def want(self, *, is_visible: bool) -> None:
        """Set in `models.viewport` what the engine should send for this widget."""

    @property
    def state(self) -> State | None:
        """The state shown; None if there is none."""
        return None if isinstance(self._state, str) else self._state

    def follow(self, models: Models) -> None:
        """Connect the signals that `follows` declares, and read for the first time."""
        self._models = models
        at_rest = [source for source in self.follows if source.at_rest]
        self._kinds_at_rest = frozenset[str]().union(*(source.kinds for source in at_rest))
        self._kinds = frozenset[str]().union(*(s.kinds for s in self.follows if s not in at_rest))
        for model, signal, has_kind in {(s.model, name, bool(s.kinds)) for s in self.follows for name in s.signals}:
            getattr(attrgetter(model)(models), signal).connect(self._on_kind if has_kind else self._ask_refresh)
        if type(self).describe is not Reader.describe:
            models.timeline.texts_due.connect(self._on_texts_due)  # connected last, so that the state is read before
        self.refresh()

    def refresh(self) -> None:
        """Read the models, and show the state if it differs from the one shown."""
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
            if newest is not None and newest is not state:  # showing it resized the widget, which read another state
                self.show_state(newest)
            self._is_undescribed = True
            if not self._models.status.now.running and (self.underMouse() or QAccessible.isActive()):
                self.describe_now()

    def _ask_refresh(self) -> None:
        self._models.refreshes.ask(self.refresh)

    def _on_texts_due(self) -> None:
        if self.underMouse() or QAccessible.isActive():
            self._models.refreshes.ask(self.describe_now)

    def describe_now(self) -> None:
        """Describe the state shown, unless it is described already."""
        if self._is_undescribed and self.state is not None:
            self._is_undescribed = False
            self.describe(self.state)

    def show_again(self) -> None:
        """Show the state even if it is unchanged: its colours or size are others."""
        self._state = None
        self.refresh()

    def _on_kind(self, kind: str) -> None:
        if kind in self._kinds or (kind in self._kinds_at_rest and not self._models.status.now.running):
            self._ask_refresh()

    def enterEvent(self, event: QEnterEvent) -> None:
        super().enterEvent(event)
        self.describe_now()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.refresh()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self.want(is_visible=False)
