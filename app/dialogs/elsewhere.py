"""Which machine an engine runs on, if it is another one."""

from __future__ import annotations

from PySide6.QtWidgets import QWidget

from app.kit.dialog import QuestionDialog
from app.kit.fields import line_field
from engine.client import check_choice, is_elsewhere
from engine.client.ssh import PREFIX


class AddressDialog(QuestionDialog):
    """Name the machine on which the engine shall run. Signal: `chosen(address)`."""

    def __init__(self, present: str, parent: QWidget) -> None:
        super().__init__("Engine on another machine", parent)
        tip = "ssh must get in without a question; KV Loupe in the same version is installed there"
        text = present.removeprefix(PREFIX) if is_elsewhere(present) else ""
        self._host = self.add(line_field("Machine", text, "[user@]host[:port][/path/of/kvloupe-engine]", tip))
        self.ok.setText("Connect")
        self.setMinimumWidth(620)

    def answer(self) -> str:
        return check_choice(PREFIX + self._host.text().strip().removeprefix(PREFIX))
