"""The dialog for which server to attach to, or which recording of one to play."""

from __future__ import annotations

from PySide6.QtWidgets import QFileDialog, QLineEdit, QWidget

from app.kit.boxes import row
from app.kit.buttons import push_button
from app.kit.dialog import QuestionDialog
from app.kit.fields import decimal_field, line_field
from engine.errors import InputError
from engine.wire.serving import ServerSpec

_FIELDS = (
    ("KV events", "tcp://HOST:5557, or a recording", "Where the server publishes; or a .kvevents file"),
    ("Replay", "tcp://HOST:5558, if there is one", "Where it repeats what was missed: without it the tree is partial"),
    ("Metrics", "http://HOST:8000/metrics, if there is one", "Its own figures, shown beside the tree"),
    ("Tokenizer", "the folder of the served model", "Without it tokens are numbers; its config says the bytes"),
)


class ServerDialog(QuestionDialog):
    """Signal: `chosen(ServerSpec)`."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__("Attach to a server", parent)
        self.fields = [line_field(name, hint=hint, tip=tip) for name, hint, tip in _FIELDS]
        self.speed = decimal_field(
            "Speed of a recording", 0, 0, 1000, decimals=1, step=1, unit=" ×", automatic="at once"
        )
        ways = {0: self._on_recording, 3: self._on_folder}
        for number, (field, (name, *_)) in enumerate(zip(self.fields, _FIELDS, strict=True)):
            way = ways.get(number)
            self.form.addRow(name, field if way is None else row((field, 1), push_button("…", way, "Choose it")))
        self.form.addRow("Speed of a recording", self.speed)
        self.ok.setText("Attach")
        self.setMinimumWidth(560)

    def first_field(self) -> QWidget | None:
        return self.fields[0]

    def answer(self) -> ServerSpec:
        endpoint, replay, metrics, tokenizer = (field.text().strip() for field in self.fields)
        if not endpoint:
            raise InputError("There is no address: give one like tcp://HOST:5557, or choose a recording.")
        return ServerSpec(endpoint, replay, metrics, tokenizer, self.speed.value())

    def _on_recording(self) -> None:
        self._put(self.fields[0], QFileDialog.getOpenFileName(self, "A recording", "", "KV events (*.kvevents)")[0])

    def _on_folder(self) -> None:
        self._put(self.fields[3], QFileDialog.getExistingDirectory(self, "The folder of the served model"))

    def _put(self, field: QLineEdit, text: str) -> None:
        if text:
            field.setText(text)
