"""The list of the largest numbers leads to each of them, and stays where it is when it is filled anew."""

from __future__ import annotations

from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QTreeWidgetItem
from pytestqt.qtbot import QtBot

from app.dialogs.outliers import OutliersDialog
from app.shell import Shell
from engine.wire.pictures import OutliersRequest
from tests.app import samples
from tests.app.conftest import turn


def lines(dialog: OutliersDialog) -> list[list[list[str]]]:
    tree = dialog.tree
    heads = [tree.topLevelItem(n) for n in range(tree.topLevelItemCount())]
    return [[[head.child(n).text(c) for c in range(4)] for n in range(head.childCount())] for head in heads]


def item(dialog: OutliersDialog, head: int, place: int) -> QTreeWidgetItem:
    return dialog.tree.topLevelItem(head).child(place)


def test_each_line_leads_to_its_place_in_every_panel(running: Shell, qtbot: QtBot) -> None:
    models, window = running.models, running.window
    window.actions_["view.outliers"].trigger()
    turn(running)
    (dialog,) = window.findChildren(OutliersDialog)
    head = window.docks.docks["head"]
    assert dialog.y() >= head.mapToGlobal(head.rect().bottomLeft()).y(), "its lines lead to what is above it"
    window.actions_["view.outliers"].trigger()
    assert window.findChildren(OutliersDialog) == [dialog], "one is enough"
    assert models.viewport.now.wants_outliers
    keys, values, attended = lines(dialog)
    assert keys[1] == ["L1 · kv head 1 · channel 4", "3.9", "1.8×", keys[1][3]] or keys[1][0].startswith(
        "L1 · kv head 1"
    )
    assert values[0][:2] == ["L4 · kv head 2 · channel 17", "-21.50"]
    assert attended[0][0] == "40.0 % · most in L1 head 5, 90.0 %"
    dialog.activateWindow()
    dialog.tree.setFocus()
    QApplication.processEvents()
    dialog.tree.setCurrentItem(item(dialog, 1, 0))
    now = models.selection.now
    assert (now.layer, now.kv_head, now.position, now.lens, now.channel) == (4, 2, 9, "values", 17)
    models.selection.update(change=True)
    dialog.tree.itemActivated.emit(item(dialog, 0, 1), 0)
    now = models.selection.now
    assert (now.layer, now.kv_head, now.position, now.lens, now.channel, now.change) == (1, 1, 2, "keys", 4, False)
    qtbot.keyClick(dialog.tree, Qt.Key.Key_Down)
    models.selection.update(lens="values")
    dialog.tree.setCurrentItem(item(dialog, 2, 1))
    now = models.selection.now
    assert (now.layer, now.kv_head, now.position, now.lens, now.channel) == (3, 0, 7, "values", None)
    dialog.tree.itemActivated.emit(dialog.tree.topLevelItem(0), 0)
    assert models.selection.now == now, "a heading leads nowhere"
    again = samples.outliers_picture(OutliersRequest(0, 24, 20))
    models.pictures.put(replace(again, attended=again.attended[1:]))
    QApplication.processEvents()
    current = dialog.tree.currentItem()
    assert current.text(0).startswith("10.0 % · most in L3 head 0"), "the line stays chosen in the list that came"
    assert models.selection.now == now
    models.pictures.put(replace(again, attended=()))
    QApplication.processEvents()
    assert lines(dialog)[2] == [["not recorded at this step", "", "", ""]]
    models.pictures.clear()
    QApplication.processEvents()
    assert (lines(dialog), dialog.source.text()) == ([], "The list appears with the first step.")
    dialog.reject()
    assert not models.viewport.now.wants_outliers


def test_exact_numbers_beside_dequantised_ones_are_marked(running: Shell) -> None:
    models, window = running.models, running.window
    window.actions_["view.outliers"].trigger()
    turn(running)
    (dialog,) = window.findChildren(OutliersDialog)
    picture = samples.outliers_picture(OutliersRequest(0, 24, 20))
    coded = tuple(replace(one, is_coded=True) for one in picture.keys)
    models.pictures.put(replace(picture, provenance="dequantised", keys=coded))
    QApplication.processEvents()
    keys, values, _ = lines(dialog)
    assert [line[0].endswith(" · exact") for line in (*keys, *values)] == [False] * len(keys) + [True] * len(values)
    assert dialog.source.text().startswith("dequantised · exact where it says so")
    models.pictures.put(replace(picture, provenance="dequantised", keys=coded, values=()))
    QApplication.processEvents()
    assert not any(line[0].endswith("exact") for line in lines(dialog)[0])
