"""The ledger: every line adds up, every gap has a name, and bars show what is stored."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPoint, Qt
from pytestqt.qtbot import QtBot

from app.kit.facts import Fact
from app.kit.theme import current_theme
from app.models import Models
from app.panels import bytes as ledger
from app.panels.bytes import layer_cells
from engine.wire.records import ByteGap, CacheBytes, Floats, LayerBytes
from tests.app import samples


def table(*totals: float) -> Floats:
    return np.array([[t / 2, t / 4, t / 8, t / 8] for t in totals], np.float32)


def lines_of(held: CacheBytes) -> dict[str, Fact]:
    return {fact.label: fact for fact in ledger.ledger_lines(held, is_shared=False)}


def number(fact: Fact) -> int:
    return int(fact.text.lstrip("+~").replace(",", "").replace("−", "-"))


def test_the_ledger_adds_up_and_names_every_gap() -> None:
    lines = lines_of(samples.cache_bytes(40, reserved_tokens=64))
    room = lines["room to grow"]
    assert number(lines["stored in tensors"]) + number(room) == number(lines["reserved in storage"])
    assert (room.text[0], room.role, room.indent) == ("+", "muted", 1)
    assert lines["held by the allocator"].text == "cannot be asked here"
    assert lines.keys().isdisjoint({"⚠ without a name", "other: workspace", "stored beyond the formula"})


def test_a_difference_to_the_formula_is_told_with_its_sign() -> None:
    held = samples.cache_bytes(40)
    dropped = replace(
        held, layers=tuple(replace(layer, stored=layer.stored // 2) for layer in held.layers), allocator=10**9
    )
    lines = lines_of(dropped)
    assert number(lines["left the window, or not kept"]) == dropped.stored - dropped.predicted < 0
    assert number(lines["other: workspace"]) == 10**9 - dropped.reserved - dropped.looking
    assert "stored beyond the formula" not in lines


def test_bytes_without_a_name_are_listed_too() -> None:
    held = samples.cache_bytes(40, reserved_tokens=64)
    bare = replace(held, layers=tuple(replace(layer, gaps=()) for layer in held.layers))
    unnamed = lines_of(bare)["⚠ without a name"]
    assert (number(unnamed), unnamed.role) == (bare.reserved - bare.stored, "bad")


def test_who_is_in_memory_adds_up_to_what_allocator_or_process_hold() -> None:
    layer = LayerBytes(0, "full", 100, 100, 150, (ByteGap("room to grow", 50, "reserved"),))
    held = CacheBytes((layer,), 20, 5000, None, weights=1000, kept=8, peak=6000, device=9000)
    lines = lines_of(held)
    assert number(lines["of which checkpoints"]) == 8
    assert number(lines["the program itself"]) == 5000 - 150 - 20 - 1000
    assert "other: workspace" not in lines
    assert number(lines["peak since the step before"]) == 6000
    assert number(lines["on the device, all programs"]) == 9000
    on_gpu = lines_of(replace(held, allocator=1500))
    assert number(on_gpu["other: workspace"]) == 1500 - 150 - 20 - 1000
    assert "the program itself" not in on_gpu
    table = layer_cells(replace(held, layers=(replace(layer, device="cuda:1"),)))
    assert table[1][0][0].text == "L0 full · cuda:1"


def test_parts_of_other_lines_and_brief_peaks_enter_no_sum() -> None:
    gaps = (
        ByteGap("scales and offsets", 30, "stored"),
        ByteGap("room to grow", 50, "reserved"),
        ByteGap("dequantised copy", 999, "transient"),
        ByteGap("rows kept for going back", 7, "looking"),
    )
    layer = LayerBytes(0, "full", 100, 100, 150, gaps)
    held = CacheBytes((layer, replace(layer, layer=1)), looking=14, process=10**6, allocator=None)
    lines = lines_of(held)
    assert number(lines["of which scales and offsets"]) == 60
    assert lines["dequantised copy, briefly"].text == "~999", "one layer at a time"
    assert number(lines["of which for going back"]) == 14
    room = number(lines["room to grow"])
    assert number(lines["stored in tensors"]) + room == number(lines["reserved in storage"])
    heads, (total, _, second), layers = layer_cells(held)
    assert layers == (None, 0, 1)
    assert [head.text for head in heads[3:-1]] == ["scales", "room", "copy"]
    assert [cell.text for cell in second[1:]] == ["100", "100", "30", "+50", "~999", "150"]
    assert [cell.text for cell in total[1:]] == ["200", "200", "60", "+100", "~999", "300"]
    (bar, _) = ledger.layer_bars(held)
    assert bar.pieces == pytest.approx((70 / 150, 30 / 150))


def test_layer_bars_are_shares_of_the_largest() -> None:
    bars = ledger.layer_bars(samples.cache_bytes(32, reserved_tokens=64))
    assert {bar.reserved for bar in bars} == {1.0}
    assert {sum(bar.pieces) for bar in bars} == {0.5}
    assert ledger.layer_bars(replace(samples.cache_bytes(1), layers=())) == ()


def test_layer_bars_stand_on_the_ground_and_show_the_least_that_is_stored(qtbot: QtBot) -> None:
    held = samples.cache_bytes(10)
    layer = replace(held.layers[0], stored=50, reserved=100, predicted=50, gaps=())
    tiny = replace(layer, layer=1, stored=1, predicted=1)
    bars = ledger.LayerBars()
    qtbot.addWidget(bars)
    bars.resize(80, 130)  # with 15 pixels for words above and below
    bars.show_bars(ledger.layer_bars(replace(held, layers=(layer, tiny))))
    picture, theme = bars.grab().toImage(), current_theme()
    names = {theme.color(role).name(): role for role in ("page_free", "page_used", "text", "panel")}

    def column(x: int) -> list[str]:
        return [names.get(picture.pixelColor(x, y).name(), "") for y in range(15, 115)]

    assert column(5) == ["page_free"] * 49 + ["text"] + ["page_used"] * 50
    assert column(45) == ["page_free"] * 98 + ["text", "page_used"]
    assert {role for x in range(36, 40) for role in column(x)} == {"panel"}, "between two bars"


def test_a_click_on_a_bar_selects_its_layer(qtbot: QtBot, models: Models) -> None:
    models.timeline.append(samples.story(3))
    view = ledger.BytesView(models)
    qtbot.addWidget(view)
    view.resize(448, 600)
    view.show()
    (bars,) = view.findChildren(ledger.LayerBars)
    assert bars.tip_at(QPoint(bars.width() // 2, 30)).startswith("layer ")
    place = QPoint(int(min(bars.width() / samples.LAYERS, 64) * 2.5), 30)
    qtbot.mouseClick(bars, Qt.MouseButton.LeftButton, pos=place)
    assert models.selection.now.layer == 2
