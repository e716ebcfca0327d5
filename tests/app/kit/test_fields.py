"""Number fields: a number beyond the limits is refused with a sentence and never turned into another one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtCore import QLocale, Qt
from PySide6.QtGui import QImage
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QDoubleSpinBox, QSpinBox, QWidget

from app.dialogs.cache import CacheDialog
from app.kit.fields import SmallBox, count_field, decimal_field, whole_field
from engine.spec.cache import cache_preset


def typed(field: QSpinBox | QDoubleSpinBox, text: str) -> None:
    field.selectAll()
    QTest.keyClicks(field, text)
    assert field.lineEdit().text() == text, "what is typed stays on the screen"
    QTest.keyClick(field, Qt.Key.Key_Return)


@pytest.mark.parametrize(
    "field",
    [
        lambda: whole_field("Budget", 256, 1, 9_999_999, unit="tokens"),
        lambda: decimal_field("Budget", 256.0, 1, 9_999_999, decimals=0),
    ],
)
def test_a_number_beyond_the_limits_is_refused_with_the_limit(qapp: QApplication, field: object) -> None:
    made = field()  # type: ignore[operator]
    told: list[str] = []
    made.refusing.refused.connect(told.append)
    typed(made, "99999999999")
    assert made.value() == 256
    assert told == ["Budget is at most 9,999,999, so 99999999999 was not taken: it is 256 as before."] * len(told)
    assert told
    typed(made, "512")
    assert (made.value(), made.refusing.problem) == (512, "")


@pytest.fixture
def arabic() -> Iterator[None]:
    """A computer whose numbers have other digits, another point and no commas."""
    was = QLocale()
    QLocale.setDefault(QLocale(QLocale.Language.Arabic, QLocale.Country.Egypt))
    yield
    QLocale.setDefault(was)


def test_numbers_are_written_and_read_as_everywhere_in_the_window(qapp: QApplication, arabic: None) -> None:
    rows, share = count_field("Rows", 1024), decimal_field("Share", 0.25, 0, 1)
    assert (rows.text(), share.text()) == ("1,024", "0.2500")
    typed(rows, "2,048")
    typed(share, "0.5")
    assert (rows.value(), share.value()) == (2048, 0.5)
    share.selectAll()
    QTest.keyClicks(share, "0,7")
    assert (share.text(), share.value()) == ("0.7", 0.7)


def test_a_dialog_stays_open_and_says_which_number_it_did_not_take(qapp: QApplication) -> None:
    parent = QWidget()
    dialog = CacheDialog(cache_preset("h2o").spec, None, parent)
    chosen: list[object] = []
    dialog.chosen.connect(chosen.append)
    budget = dialog.fields["budget"]
    assert isinstance(budget, QSpinBox)
    was = budget.value()
    typed(budget, "99999999999")
    dialog.accept()
    assert f"was not taken: it is {was:,} as before" in dialog.problem.text()
    assert chosen == []
    typed(budget, str(was + 1))
    dialog.accept()
    assert len(chosen) == 1
    parent.deleteLater()


def test_an_entry_that_does_not_fit_ends_with_an_ellipsis(qapp: QApplication) -> None:
    def painted(text: str) -> QImage:
        box = SmallBox("Mode", options=((text, 1, ""),))
        box.resize(90, 20)
        return box.grab().toImage()

    text = "the longest of them all"
    cut = painted(text)
    ends = (f"{text[:count].rstrip()}…" for count in range(len(text)))
    assert any(painted(end) == cut for end in ends)
