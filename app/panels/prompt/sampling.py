"""The sampling of a sequence: a small button that shows it, and a popup with its parameters."""

from __future__ import annotations

from msgspec.structs import replace
from PySide6.QtCore import QObject, QPoint, QSignalBlocker, QSize, Qt, Signal
from PySide6.QtWidgets import QDoubleSpinBox, QFormLayout, QFrame, QLineEdit, QSpinBox, QToolButton, QWidget

from app.kit.fields import decimal_field, line_field, whole_field
from app.kit.theme import Themed, current_theme, font_text, icon
from app.kit.widgets import PopupKeys, on_change, plain_label
from app.models import Models
from app.models.sequence_status import selected_info
from engine.errors import InputError
from engine.spec.sampling import NEWEST_DRAWS, TURN_ENDS, SamplingParams, stop_strings, stop_text

LONGEST_ANSWER = 256  # tokens of an answer in Chat, unless the user sets another limit
MOST = 1_000_000  # of a number
ANSWER_TIP = "In Chat an answer ends after so many tokens, if not before. A text goes on until you pause it."


class SamplingPopup(QFrame):
    """Fields for temperature and filters. Zero (for top-p: one) switches a filter off; the field then shows "off" or is
    named accordingly."""

    changed = Signal()

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent, Qt.WindowType.Popup)
        PopupKeys(self)
        self.setObjectName("popup")
        self.setFrameShape(QFrame.Shape.StyledPanel)
        self.temperature = decimal_field("Temperature", 0.0, 0.0, 5.0, decimals=2, automatic="greedy")
        self.top_k = whole_field("Top-k", 0, most=MOST, automatic="off")
        self.top_p = decimal_field("Top-p", 1.0, 0.01, 1.0, decimals=2, step=0.05)
        self.min_p = decimal_field("Min-p", 0.0, 0.0, 1.0, decimals=2, step=0.01, automatic="off")
        self.stop = line_field(
            "Stop at",
            hint="no text",
            tip='Texts that end a sequence once it has generated one: The end, or several: "\\n\\n" "The end"',
        )
        self.stop.editingFinished.connect(self._on_stop)
        self._stop: tuple[str, ...] = ()
        self.longest_answer = whole_field(
            "Longest answer", LONGEST_ANSWER, most=MOST, automatic="no limit", tip=ANSWER_TIP
        )
        self.longest_answer.setSuffix(" tokens")
        numbers = (self.temperature, self.top_k, self.top_p, self.min_p, self.longest_answer)
        for number in numbers:
            number.setFixedWidth(110)
            number.setAlignment(Qt.AlignmentFlag.AlignRight)
        on_change(self._on_value, *numbers)
        self.problem = plain_label(role="warning", wraps=True)
        self.problem.hide()
        form = QFormLayout(self)
        form.setContentsMargins(12, 10, 12, 10)
        form.setHorizontalSpacing(14)
        form.setVerticalSpacing(6)
        for field in (self.temperature, self.top_k, self.top_p, self.min_p):
            form.addRow(field.accessibleName(), field)
        form.addRow(self.stop.accessibleName(), self.stop)
        form.addRow(self.longest_answer.accessibleName(), self.longest_answer)
        about = plain_label(ANSWER_TIP, role="muted", font=font_text(11.5), wraps=True)
        form.addRow(about)
        form.addRow(self.problem)

    def field(self, name: str) -> QSpinBox | QDoubleSpinBox | QLineEdit:
        """The field of that name: `temperature`, `top_k`, `stop` and so on."""
        found = getattr(self, name, None)
        assert isinstance(found, QSpinBox | QDoubleSpinBox | QLineEdit), name
        return found

    def params(self, seed: int) -> SamplingParams:
        top_p = self.top_p.value()
        return SamplingParams(
            temperature=round(self.temperature.value(), 3),
            top_k=self.top_k.value() or None,
            top_p=round(top_p, 3) if top_p < 1 else None,
            min_p=round(self.min_p.value(), 3) or None,
            seed=seed,
            stop=self._stop,
            max_new_tokens=self.longest_answer.value() or None,
            draws=NEWEST_DRAWS,
        )

    def show_params(self, params: SamplingParams) -> None:
        """Fill the fields without emitting `changed`. A text has no limit of tokens, and the one of answers stays."""
        values = (
            (self.temperature, params.temperature),
            (self.top_k, params.top_k or 0),
            (self.top_p, params.top_p or 1.0),
            (self.min_p, params.min_p or 0.0),
            (self.longest_answer, params.max_new_tokens or self.longest_answer.value()),
        )
        for field, value in values:
            with QSignalBlocker(field):
                field.setValue(value)  # type: ignore[arg-type]
        self._stop = params.stop
        if not self.stop.hasFocus():  # do not replace what the user is typing
            self.stop.setText(stop_text(params.stop))
            self._refuse("")

    def _on_stop(self) -> None:
        """Take the stop strings; if they are invalid, say why and keep those before."""
        try:
            wanted = SamplingParams(stop=stop_strings(self.stop.text())).stop
        except InputError as error:
            self._refuse(str(error))
            return
        self._refuse("")
        if wanted != self._stop:
            self._stop = wanted
            self.changed.emit()

    def _refuse(self, problem: str) -> None:
        self.problem.setText(problem)
        self.problem.setVisible(bool(problem))
        self.adjustSize()

    def _on_value(self, _value: float) -> None:
        self.changed.emit()


class SamplingButton(Themed, QToolButton):
    """Shows the sampling parameters and opens the popup. Signal: `changed()`, a parameter was changed."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("field")
        self.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextOnly)
        self.setIconSize(QSize(12, 12))
        self.setLayoutDirection(Qt.LayoutDirection.RightToLeft)  # so that the chevron follows the text
        self.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self.popup = SamplingPopup(self)
        on_change(self._on_changed, self.popup)
        self.clicked.connect(self._on_clicked)
        self.take_theme()
        self._refresh()

    def take_theme(self) -> None:
        self.setIcon(icon("chevron", current_theme().muted, size=12))

    def params(self, seed: int) -> SamplingParams:
        return self.popup.params(seed)

    def show_params(self, params: SamplingParams) -> None:
        """Show parameters without emitting `changed`."""
        self.popup.show_params(params)
        self._refresh()

    def _on_clicked(self) -> None:
        self.open_at("temperature")

    def open_at(self, name: str) -> None:
        """Open the popup with the cursor in a field."""
        self.popup.adjustSize()
        self.popup.move(self.mapToGlobal(QPoint(0, self.height() + 3)))
        self.popup.show()
        field = self.popup.field(name)
        field.setFocus()
        field.selectAll()

    def set_value(self, name: str, value: float) -> None:
        """Set the number of a field, as if it were typed."""
        field = self.popup.field(name)
        if isinstance(field, QDoubleSpinBox):
            field.setValue(value)
        elif isinstance(field, QSpinBox):
            field.setValue(int(value))

    def _on_changed(self) -> None:
        self._refresh()
        self.changed.emit()

    def _refresh(self) -> None:
        params = self.popup.params(0)
        parts = ["greedy" if params.is_greedy else f"T {params.temperature:g}"]
        if not params.is_greedy:
            parts += [f"k {params.top_k}"] if params.top_k else []
            parts += [f"p {params.top_p:g}"] if params.top_p else []
            parts += [f"min {params.min_p:g}"] if params.min_p else []
        parts += [f"stop {len(params.stop)}"] if params.stop else []
        self.setText(" · ".join(parts))
        tip = "How the next token is chosen: temperature, top-k, top-p, min-p; and texts that end the sequence"
        self.setToolTip(tip)
        self.setAccessibleName(f"{tip}: {self.text()}")


def without_turn_end(params: SamplingParams) -> SamplingParams:
    """The sampling of a sequence as the user chose it: without its logit bias, which an edit has set, and without the
    text that ends an answer, which its conversation has added."""
    return replace(params, bias=None, stop=tuple(text for text in params.stop if text not in TURN_ENDS))


def seed_field() -> QSpinBox:
    """A field for a seed, narrow enough for the row below the editor."""
    field = whole_field("Seed", 0, tip="The same seed draws the same tokens again")
    field.setPrefix("seed ")
    field.setFixedWidth(70)
    return field


class SamplingOf(QObject):
    """Shows the selected sequence's sampling in button and seed, whenever `show_reported` is called. Signal:
    `wished(params)`, when the user changes it.

    Until the engine has confirmed a change, the fields keep it: what the engine reports until then is older.
    """

    wished = Signal(object)

    def __init__(self, models: Models, button: SamplingButton, seed: QSpinBox, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._models = models
        self._button, self._seed = button, seed
        self._shown_of: int | None = None  # the sequence whose sampling the fields show
        self._asked: list[SamplingParams] = []  # the user's changes that the engine has not confirmed yet
        on_change(self._on_changed, button, seed)
        models.status.failed.connect(self._on_failed)

    @property
    def params(self) -> SamplingParams:
        return self._button.params(self._seed.value())

    def show_reported(self) -> None:
        """Show the sampling that the engine reports for the selected sequence."""
        info, seq_id = selected_info(self._models), self._models.selection.now.seq_id
        reported = without_turn_end(info.sampling) if info is not None else None
        if reported is None or self._shown_of != seq_id:
            self._asked.clear()
        self._shown_of = seq_id if reported is not None else None
        asked = self._asked
        if reported is not None and reported.max_new_tokens is None:  # a text has no limit, whatever the field says
            asked = [replace(each, max_new_tokens=None) for each in asked]
        if reported in asked:
            del self._asked[: asked.index(reported) + 1]
        elif reported is not None and not self._asked:
            self._button.show_params(reported)
            with QSignalBlocker(self._seed):
                self._seed.setValue(min(reported.seed, self._seed.maximum()))

    def _on_changed(self) -> None:
        if self._shown_of is not None:
            self._asked.append(self.params)
        self.wished.emit(self.params)

    def _on_failed(self, text: str) -> None:
        if text and self._asked:
            self._asked.clear()
            self.show_reported()
