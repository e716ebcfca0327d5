"""Version, licence, what the program runs on."""

from __future__ import annotations

import platform

from PySide6.QtCore import Qt, qVersion
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QDialogButtonBox, QVBoxLayout, QWidget

from app.kit.dialog import Dialog
from app.kit.labels import plain_label
from app.kit.theme import font_text


class AboutDialog(Dialog):
    """Version, licence, what it runs on."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__("About KV Loupe", parent)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(22, 20, 22, 16)
        layout.setSpacing(10)
        name = plain_label("KV Loupe {}".format(version("kvloupe")).strip())
        name.setFont(font_text(17, QFont.Weight.DemiBold))
        facts = plain_label(
            "\n\n".join(
                (
                    "Look into the KV cache of a language model, step by step.",
                    _versions(),
                    "Apache License 2.0. Typefaces Inter and JetBrains Mono, SIL Open Font License 1.1.",
                    "It sends nothing anywhere, and downloads nothing that you did not allow.",
                )
            )
        )
        facts.setWordWrap(True)
        facts.setFixedWidth(420)
        facts.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        layout.addWidget(name)
        layout.addWidget(facts)
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Close)
        buttons.rejected.connect(self.reject)
        layout.addWidget(buttons)


def version(distribution: str) -> str:
    """An installed version without importing the package."""
    from importlib import metadata  # drags in the mail parser: not before somebody asks

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _versions() -> str:
    parts = [f"Python {platform.python_version()}", f"Qt {qVersion()}"]
    parts += [f"{name} {version(name)}" for name in ("torch", "transformers", "safetensors", "numpy")]
    return " · ".join(parts)
