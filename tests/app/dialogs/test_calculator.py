from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from app.dialogs.cache import AUTOMATIC, MIB, PAGES, TOKENS, CacheDialog, PoolSize
from app.dialogs.calculator import CONFIG, LOADED, TYPED, Calculator
from app.draw.format import byte_size
from app.shell import Shell
from engine.spec.cache import PRESETS, CacheSpec, tuned
from engine.spec.codec import CodecSpec, Coding, parse_codec, uniform
from engine.wire.commands import SetCache
from tests.app import samples
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine
from tests.app.found import button
from tests.engine.predict.formulas import evaluated

GPT2_LARGE = {"model_type": "gpt2", "n_layer": 36, "n_head": 20, "n_embd": 1280, "n_positions": 1024}


@pytest.fixture
def sheet(host: QWidget) -> Iterator[Calculator]:
    sheet = Calculator(samples.model_info(), CacheSpec(), host)
    sheet.show()
    yield sheet
    sheet.close()
    QApplication.processEvents()


def lines(sheet: Calculator) -> dict[str, str]:
    return dict(line.strip().split("\t", 1) for line in sheet.facts.text().splitlines() if "\t" in line)


def choose(sheet: Calculator, source: str, mode: str, dtype: str = "float16") -> None:
    sheet.source.setCurrentIndex(sheet.source.findData(source))
    sheet.mode.setCurrentIndex(sheet.mode.findData(mode))
    sheet.dtype.setCurrentIndex(sheet.dtype.findData(dtype))


def test_it_opens_on_the_loaded_model(sheet: Calculator) -> None:
    per_token = 2 * 6 * 4 * 32 * 4
    assert sheet.source.currentData() == LOADED
    assert lines(sheet)["bytes per token"] == f"{per_token:,}"
    per_sequence = int(lines(sheet)["stored per sequence"].replace(",", ""))
    assert evaluated(lines(sheet)["formula 2·L·H_kv·D·S·b"]) == per_sequence
    assert (sheet.layers.value(), sheet.kv_heads.value(), sheet.head_dim.value()) == (6, 4, 32)
    assert not sheet.layers.isEnabled()


def test_typed_dimensions_are_worked_out_while_they_are_typed(sheet: Calculator) -> None:
    choose(sheet, TYPED, "dynamic")
    sheet.layers.setValue(32)
    sheet.kv_heads.setValue(32)
    sheet.head_dim.setValue(128)
    sheet.context.setValue(2048)
    assert lines(sheet)["stored per sequence"] == "1,073,741,824"
    sheet.kv_heads.setValue(8)
    sheet.batch.setValue(3)
    assert lines(sheet)["total, 3 sequences"] == f"{3 * 1_073_741_824 // 4:,}"


def test_how_many_tokens_fit(sheet: Calculator) -> None:
    choose(sheet, LOADED, "dynamic", "float32")
    sheet.memory.setValue(1.0)
    assert lines(sheet)["fits on 1.0 GiB"] == f"up to {(1024**3 - 11_000_000) // 6144:,} tokens"
    sheet.mode.setCurrentIndex(sheet.mode.findData("none"))
    assert lines(sheet)["fits on 1.0 GiB"] == "any context"


@pytest.mark.parametrize(
    ("name", "per_token", "fits"),
    [
        ("Llama 3.1 8B", 2 * 32 * 8 * 128 * 2, f"up to {(24 * 1024**3 - 2 * 8_030_261_248) // 131_072:,} tokens"),
        ("Qwen 3 8B", 2 * 36 * 8 * 128 * 2, f"up to {(24 * 1024**3 - 2 * 8_190_735_360) // 147_456:,} tokens"),
        ("Mistral 7B v0.3", 2 * 32 * 8 * 128 * 2, f"up to {(24 * 1024**3 - 2 * 7_248_023_552) // 131_072:,} tokens"),
        ("DeepSeek V3", 61 * (512 + 64) * 2, "no: weights of 624.9 GiB"),
    ],
)
def test_what_a_published_model_takes(sheet: Calculator, name: str, per_token: int, fits: str) -> None:
    """A config's numbers, worked out by hand: K and V of every layer, or the latent and the rotary key of MLA."""
    choose(sheet, name, "dynamic", "bfloat16")
    sheet.batch.setValue(1)
    assert lines(sheet)["bytes per token"] == f"{per_token:,}"
    assert lines(sheet)["fits on 24.0 GiB"] == fits
    assert not sheet.layers.isEnabled()


def test_a_model_that_is_chosen_brings_its_own_dtype(sheet: Calculator) -> None:
    own = sheet.dtype.currentData()
    assert own != "bfloat16"
    for source, dtype in (("Llama 3.1 8B", "bfloat16"), (LOADED, own)):
        sheet.source.setCurrentIndex(sheet.source.findData(source))
        assert sheet.dtype.currentData() == dtype


def test_pages_round_up_and_only_matter_to_paged_modes(sheet: Calculator) -> None:
    choose(sheet, LOADED, "dynamic", "float32")
    assert not sheet.page_size.isEnabled()
    sheet.mode.setCurrentIndex(sheet.mode.findData("paged"))
    assert sheet.page_size.isEnabled()
    sheet.context.setValue(100)
    sheet.page_size.setCurrentIndex(sheet.page_size.findData(64))
    assert lines(sheet)["stored per sequence"] == f"{100 * 6144:,}"
    assert lines(sheet)["reserved per sequence"] == f"{128 * 6144:,}"


def test_a_config_file_gives_the_dimensions(sheet: Calculator, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GPT2_LARGE))
    choose(sheet, CONFIG, "dynamic")
    assert sheet.problem.text() == "Choose a model's config.json first."
    sheet.read_config(path)
    sheet.context.setValue(512)
    assert lines(sheet)["total, one sequence"] == "94,371,840"
    assert not sheet.problem.isVisible()


def test_the_loaded_model_counts_with_its_weights(host: QWidget) -> None:
    sheet = Calculator(samples.model_info(), CacheSpec("paged", num_pages=9), host)
    said = {
        label: int(text.replace(",", "")) for label, text in lines(sheet).items() if text.replace(",", "").isdigit()
    }
    assert said["weights of the model"] == 11_000_000
    assert said["model and cache"] == 11_000_000 + max(said["pool, for all sequences"], said["total, one sequence"])
    choose(sheet, TYPED, "dynamic")
    assert "weights of the model" not in lines(sheet)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[1]", "holds no JSON object"),
        ("{", "is not valid JSON"),
        ('{"model_type": "whisper", "is_encoder_decoder": true}', "its encoder reads sound"),
        ('{"model_type": "fsmt", "is_encoder_decoder": true}', "whose layers are not known here"),
    ],
)
def test_a_bad_config_is_refused_in_one_sentence(sheet: Calculator, tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    choose(sheet, CONFIG, "dynamic")
    sheet.read_config(path)
    assert sheet.problem.isVisible()
    assert words in sheet.problem.text()
    assert "\n" not in sheet.problem.text()
    assert sheet.facts.text() == ""


def test_a_missing_config_is_refused(sheet: Calculator, tmp_path: Path) -> None:
    choose(sheet, CONFIG, "dynamic")
    sheet.read_config(tmp_path / "nothing.json")
    assert "cannot be opened" in sheet.problem.text()


def test_an_impossible_reservation_stands_in_place(sheet: Calculator) -> None:
    choose(sheet, LOADED, "static", "float32")
    sheet.context.setValue(500)
    sheet.reserved.setValue(100)
    assert "cannot hold a context of 500" in sheet.problem.text()
    sheet.reserved.setValue(600)
    assert lines(sheet)["reserved per sequence"] == f"{600 * 6144:,}"


def test_every_mode_is_worked_out_as_the_engine_has_it(sheet: Calculator) -> None:
    """KIVI's groups are 32 and its residual 128, as in the cache that the engine makes; 6 layers of 4 heads of 32."""
    choose(sheet, LOADED, "kivi-4", "float32")
    sheet.context.setValue(300)
    keys, values = 256, 172  # coded
    codes = 16 + 4  # of a row of 32 numbers: 4 bits each, and a scale and an offset
    exact = (300 - keys + 300 - values) * 32 * 4
    assert lines(sheet)["stored per sequence"] == f"{6 * 4 * ((keys + values) * codes + exact):,}"
    choose(sheet, LOADED, "h2o", "float32")
    sheet.kept.setValue(10)
    assert lines(sheet)["stored per sequence"] == f"{10 * 6144:,}"
    sheet.keys.setCurrentIndex(sheet.keys.findData("int8"))
    assert lines(sheet)["stored per sequence"] == f"{10 * 6 * 4 * 2 * (32 + 2):,}"
    sheet.keys.setCurrentIndex(sheet.keys.findData("kivi-2"))
    assert "a single row cannot be evicted" in sheet.problem.text()
    choose(sheet, LOADED, "paged-fp8", "float32")
    sheet.keys.setCurrentIndex(0)
    assert lines(sheet)["pool, for all sequences"].startswith(f"{(4 * 1024 // 16 + 1) * 16 * 6 * 4 * 2 * (32 + 4):,}")


def test_it_opens_on_the_cache_in_use(host: QWidget) -> None:
    sheet = Calculator(samples.model_info(), tuned(PRESETS["tova"].spec, budget=7), host)
    sheet.context.setValue(50)
    assert sheet.mode.currentText() == "TOVA, in use"
    assert lines(sheet)["stored per sequence"] == f"{7 * 6144:,}"
    sheet.mode.setCurrentIndex(sheet.mode.findData("tova"))
    assert lines(sheet)["stored per sequence"] == f"{50 * 6144:,}", "a budget of 256, as the preset has"
    sheet.close()
    mixed = Calculator(samples.model_info(), CacheSpec(codec=parse_codec("int8/exact")), host)
    mixed.context.setValue(50)
    assert mixed.mode.currentText() == "K INT8 · V exact, in use"
    assert lines(mixed)["stored per sequence"] == f"{50 * 6 * 4 * (32 + 2 + 32 * 4):,}"
    mixed.close()


def test_the_tutorials_table_is_there(sheet: Calculator) -> None:
    assert lines(sheet)["GPT-2 Large at 8,192"] == "1,509.9 MB"
    assert lines(sheet)["LLaMA-7B at 512"] == "268.4 MB"


def test_results_are_copied_as_text(sheet: Calculator, qtbot: QtBot) -> None:
    with qtbot.waitSignal(sheet.message):
        button(sheet, "Copy").click()
    assert "bytes per token\t6,144" in QApplication.clipboard().text()


# ---- the pool of a paged cache ---------------------------------------------------------------------------------------


@pytest.fixture
def dialog(host: QWidget) -> Iterator[CacheDialog]:
    dialog = CacheDialog(CacheSpec("paged"), samples.model_info(), host)
    dialog.show()
    yield dialog
    dialog.close()
    QApplication.processEvents()


def pool_of(dialog: CacheDialog) -> PoolSize:
    assert isinstance(dialog.pool, PoolSize)
    return dialog.pool


def size(dialog: CacheDialog, unit: str, text: str) -> None:
    pool = pool_of(dialog)
    pool.unit.setCurrentIndex(pool.unit.findData(unit))
    pool.number.setText(text)


@pytest.mark.parametrize(("unit", "text", "num_pages"), [(PAGES, "100", 100), (TOKENS, "1,000", 64), (MIB, "24", 256)])
def test_a_pool_is_sized_in_pages_tokens_or_bytes(dialog: CacheDialog, unit: str, text: str, num_pages: int) -> None:
    size(dialog, unit, text)
    assert dialog.spec().num_pages == num_pages
    assert f"{num_pages:,} pages" in pool_of(dialog).words.text()


@pytest.mark.parametrize(("codec", "row_bytes"), [("exact", 32 * 4), ("int8", 32 + 2), ("fp8-token-head", 32 + 4)])
def test_a_pool_in_bytes_counts_what_the_codec_writes(host: QWidget, codec: str, row_bytes: int) -> None:
    """6 layers of 4 heads, K and V: what the engine reserves for that many pages."""
    dialog = CacheDialog(CacheSpec("paged", codec=uniform(codec)), samples.model_info(), host)
    size(dialog, MIB, "24")
    page = 16 * 6 * 4 * 2 * row_bytes
    assert dialog.spec().num_pages == 24 * 1024**2 // page
    assert pool_of(dialog).words.text().endswith(byte_size(24 * 1024**2 // page * page))
    size(dialog, AUTOMATIC, "")
    assert pool_of(dialog).words.text().endswith(byte_size(257 * page)), "four contexts of 1,024 and the null page"
    dialog.close()


def test_an_automatic_size_can_be_chosen_again(host: QWidget) -> None:
    dialog = CacheDialog(CacheSpec("paged", num_pages=40), None, host)
    assert (pool_of(dialog).unit.currentData(), pool_of(dialog).number.text()) == (PAGES, "40")
    pool_of(dialog).unit.setCurrentIndex(0)
    assert dialog.spec().num_pages is None
    dialog.close()


@pytest.mark.parametrize("text", ["", "0", "-3", "1", "many", "1e9", "9" * 30, "½"])
def test_nonsense_is_refused_before_anything_is_sent(dialog: CacheDialog, text: str) -> None:
    told: list[object] = []
    dialog.chosen.connect(told.append)
    size(dialog, PAGES, text)
    dialog.accept()
    assert told == []
    assert dialog.isVisible()
    assert dialog.problem.text().count("\n") == 0
    assert dialog.problem.isVisible()


def test_an_impossible_host_tier_is_refused(host: QWidget) -> None:
    dialog = CacheDialog(CacheSpec("host", host_gib=1.0), samples.model_info(), host)
    dialog.show()
    told: list[object] = []
    dialog.chosen.connect(told.append)
    field = dialog.fields["host_gib"]
    field.setValue(0)  # type: ignore[union-attr]
    dialog.accept()
    assert told == []
    assert dialog.problem.isVisible()
    field.setValue(2.5)  # type: ignore[union-attr]
    dialog.accept()
    assert [spec.host_gib for spec in told] == [2.5]  # type: ignore[attr-defined]


def test_the_parameters_of_a_paged_cache_reach_the_engine(shell: Shell, engine: FakeEngine) -> None:
    engine.status = samples.status(cache=CacheSpec("paged"))
    engine.loaded()
    turn(shell)
    shell.window.actions_["cache.tune"].trigger()
    dialog = shell.window.findChild(CacheDialog)
    assert isinstance(dialog, CacheDialog)
    pages = dialog.fields["page_size"]
    pages.setCurrentIndex(pages.findData(1024))  # type: ignore[union-attr]
    dialog.fields["replace_duplicates"].setChecked(True)  # type: ignore[union-attr]
    size(dialog, PAGES, "9")
    dialog.accept()
    wanted = CacheSpec("paged", page_size=1024, num_pages=9, replace_duplicates=True)
    assert engine.of(SetCache) == [SetCache(wanted)]


def test_the_calculator_opens_from_the_menu(shell: Shell, engine: FakeEngine) -> None:
    shell.window.actions_["cache.calculator"].trigger()
    sheet = shell.window.findChild(Calculator)
    assert isinstance(sheet, Calculator)
    assert sheet.source.findData(LOADED) == -1, "no model is loaded"
    assert re.fullmatch(r"2·32·32·128·[\d,]+·2", lines(sheet)["formula 2·L·H_kv·D·S·b"])
    sheet.close()


def test_pages_are_given_codecs_of_k_and_of_v(host: QWidget) -> None:
    """The bytes follow the codec, and what pages cannot have is refused in the engine's words."""
    dialog = CacheDialog(CacheSpec("paged"), samples.model_info(), host)
    dialog.show()
    told: list[CacheSpec] = []
    dialog.chosen.connect(told.append)
    assert dialog.codec is not None
    size(dialog, PAGES, "9")
    dialog.codec.choice.choose("int8", "fp8-max")
    dialog.codec.numbers["group"].setValue(16)
    row = (32 + 2) + (32 + 2 * 4)
    assert pool_of(dialog).words.text().endswith(byte_size(9 * 16 * 6 * 4 * row))
    dialog.codec.choice.choose("int8", "kivi")
    dialog.accept()
    assert told == []
    assert "shared pages cannot offer" in dialog.problem.text()
    dialog.codec.choice.choose("int8", "fp8-max")
    dialog.accept()
    assert told == [CacheSpec("paged", num_pages=9, codec=CodecSpec(Coding("int8"), Coding("fp8-max", 16)))]


def test_model_and_cache_are_its_weights_and_all_that_is_reserved(sheet: Calculator) -> None:
    """A pool is reserved at once, however little of it one sequence takes."""
    weights = samples.model_info().weight_bytes
    assert weights
    for mode in ("growing", "paged"):
        choose(sheet, LOADED, mode, "float32")
        found = {
            name: int(text.replace(",", "")) for name, text in lines(sheet).items() if text.replace(",", "").isdigit()
        }
        held = max(found["total, one sequence"], found.get("pool, for all sequences", 0))
        assert (found["weights of the model"], found["model and cache"]) == (weights, weights + held)
        assert ("pool, for all sequences" in found) == (mode == "paged")
    assert found["pool, for all sequences"] > found["total, one sequence"]
