"""The documents' tables come out as they print them, where they must, and say why where they need not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from functools import cache
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from engine.__main__ import main
from engine.seeds import hugging_face, tutorial
from engine.seeds.hugging_face import TensorSheet, softmax_by_hand
from engine.seeds.models import SeedModels, SeedSetting
from engine.seeds.page import TABLES, page, shown
from engine.seeds.published import SeedLine, TableKind, checked
from engine.session.driver import Driver
from engine.spec.cache import PRESETS
from tests.engine.cli.conftest import Twin
from tests.engine.tiny import model_of
from tests.engine.told import approve

Table = Callable[[TableKind], list[SeedLine]]
QUICK = SeedSetting(num_threads=1, num_tokens=3, repeats=1, is_quick=True)


@pytest.fixture(scope="module")
def models() -> SeedModels:
    return SeedModels(QUICK)


@pytest.fixture(scope="module")
def table(models: SeedModels) -> Table:
    """The lines of a table, measured once for all tests."""
    return cache(lambda name: list(TABLES[name].lines(models)))


def by_item(lines: Iterable[SeedLine]) -> dict[str, SeedLine]:
    found = {line.item: line for line in lines}
    assert found
    assert not [line for line in found.values() if line.must_agree and not line.agrees]
    return found


def test_the_cache_grows_by_a_row_and_the_static_one_has_zeros_behind(
    table: Table,
) -> None:
    lines = by_item(table("shapes"))
    for step, count in enumerate((7, 8, 9, 10, 11), 1):
        assert lines[f"dynamic: keys of layer 0, step {step}"].measured == f"[1, 3, {count}, 64]"
        assert lines[f"static: keys of layer 0, step {step}"].measured == "[1, 3, 1024, 64]"
        assert lines[f"no cache: input_ids after step {step}"].measured == f"[1, {count + 1}]"
        assert lines[f"dynamic: next input_ids, step {step}"].measured == "[1, 1]"
    assert lines["static: rows that hold a token"].measured == 11
    assert lines["static: rows of zeros behind"].measured == 1013
    column = lines["static: keys[0][0][0][:20, 0]"].measured
    assert isinstance(column, tuple)
    assert all(column[:11])
    assert column[11:] == (0.0,) * 9
    tokens = [lines[f"{name}: the tokens it chose"] for name in ("no cache", "dynamic", "static")]
    assert tokens[0].measured == tokens[1].measured == tokens[2].measured
    assert tokens[0].published == (34, 32, 32, 929, 3156)
    assert tokens[0].agrees is None
    assert "random weights" in tokens[0].note
    assert "random weights in the shape of HuggingFaceTB/SmolLM2-135M, 2 of its 30 layers" in tokens[0].on
    assert lines["dynamic: len(past_key_values)"].published == 30


def test_the_next_token_by_hand(table: Table) -> None:
    lines = by_item(table("logits"))
    assert lines["next_logits.shape"].measured == "[1, 7, 49152]"
    difference = lines["by hand against torch.softmax: largest difference"].measured
    assert isinstance(difference, float)
    assert difference < 1e-7
    assert lines["the argmax of logits is that of probabilities"].measured is True
    assert softmax_by_hand(torch.tensor([0.0, 0.0, torch.tensor(2.0).log()])).tolist() == pytest.approx(
        [0.25, 0.25, 0.5]
    )


def test_numbers_are_compared_where_the_weights_are_those_of_the_document() -> None:
    real, another = (TensorSheet("document", "logits", is_real=is_real) for is_real in (True, False))
    assert real.numbers("x", (18.875, 3.39), (18.9, 3.4)).agrees is True
    assert real.numbers("x", (18.875, 3.39), (18.9, 3.9)).agrees is False
    assert real.numbers("x", (1e-11,), (1.1e-11,), rtol=0.25, atol=0.0).agrees is True
    assert real.numbers("x", (1e-11,), (2e-11,), rtol=0.25, atol=0.0).agrees is False
    assert another.numbers("x", (1.0,), (2.0,)).agrees is None


def test_the_memory_table_and_the_slip_of_its_text() -> None:
    lines = by_item(tutorial.memory_lines(SeedModels(QUICK)))
    sizes = [line.measured for line in lines.values()][:9]
    assert sizes == [18.9, 75.5, 302.0, 94.4, 377.5, 1509.9, 268.4, 1073.7, 4295.0]
    assert lines["GPT-2 Small, 512 tokens, float16"].on == "tensors of a dynamic cache"
    assert lines["LLaMA-7B, 8,192 tokens, float16"].on == "by formula"
    slip = lines["the text: a 7B model at 1,024 tokens, float16"]
    assert (slip.published, slip.measured, slip.agrees) == ("1-2 GB", 536.9, False)
    assert "slip" in slip.note
    assert lines["the text: a 7B model at 1,024 tokens, float32"].agrees is True


def test_gpt2_cache_is_reserved_and_never_written(table: Table) -> None:
    lines = by_item(table("allocated"))
    names = ("num_layers", "num_key_value_heads", "head_dim", "model_max_seq_len")
    assert [lines[name].measured for name in names] == [12, 12, 64, 1024]
    assert lines["tokens computed in three steps"].measured == (10.0, 11.0, 12.0)
    assert lines["rows ever written to it"].measured == 0
    room = lines["room: K and V, 2 layers, heads, positions, head_dim, float32"]
    assert room.measured == 2 * 2 * 12 * 1024 * 64 * 4
    assert room.heading == "by the dimensions"
    assert lines["bytes that hold a token after a step"].measured == 0


def test_a_row_that_were_written_would_be_counted(models: SeedModels) -> None:
    driver = Driver.in_mode(models.tutorial.loaded, PRESETS["allocated"].spec, 4)
    driver.compute([1, 2, 3, 4])
    assert driver.cache.num_idle_rows_written == 0
    with torch.inference_mode():
        driver.cache._idle.layers[1].keys[:, 2, 7, 3] = 1.0
    assert driver.cache.num_idle_rows_written == 1


def test_max_parameters_of_the_example(table: Table) -> None:
    lines = by_item(table("max"))
    assert lines["shape_per_block"].measured == "[2, 12, 128, 12, 64]"
    assert lines["bytes_per_block"].measured == 2 * 12 * 128 * 12 * 64 * 2
    assert lines["KVCacheParams(page_size=)"].measured == 128
    assert lines["get_max_seq_len() with user_provided_max_length=1025"].measured == "ValueError"
    assert lines["a page of 64 tokens is allowed"].measured is False
    headings = {item: line.heading for item, line in lines.items()}
    assert headings["KVCacheParams(page_size=)"] == "published"
    assert headings["bytes_per_block"] == "by the page's definition", "the page names it and prints no value"
    assert headings["a page of 64 tokens is allowed"] == "as the page describes"


def test_tokens_through_the_model_and_a_curve(table: Table) -> None:
    lines = by_item(table("lengths"))
    assert lines["no cache: tokens through the model"].measured == 3040
    assert lines["KV cache: tokens through the model"].measured == 79
    points = {(line.series, line.at) for line in lines.values() if line.series}
    assert points == {(name, at) for name in ("no cache", "KV cache") for at in (16.0, 64.0)}


def test_every_published_run_stands_beside_one_measured_here(models: SeedModels, table: Table) -> None:
    lines = by_item(table("speed"))
    assert [lines[f"{cache} · L4"].published for cache in ("none", "dynamic", "static")] == [32, 32, 153]
    assert isinstance(lines["dynamic · A100"].measured, float)
    assert lines["static · L4"].measured is None
    assert "not measured here: the short form compiles nothing" in lines["static · L4"].note
    assert lines["static over dynamic · T4"].published == 0.81
    assert lines["none gives the tokens of dynamic"].measured is True
    assert lines["growing · this engine"].published is None
    assert "the short form compiles nothing" in lines["static, compiled · this engine"].note
    assert {line.on for line in lines.values()} == {models.smollm2.words}


def test_where_nothing_can_be_compiled_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hugging_face.shutil, "which", lambda name: None)
    assert (
        hugging_face.why_not_compiled(model_of("llama"), False) == "there is no C++ compiler here (CXX, g++ or clang++)"
    )
    monkeypatch.setattr(hugging_face.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert hugging_face.why_not_compiled(model_of("llama"), False) == ""


def test_a_compiler_that_fails_is_a_note(models: SeedModels, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(model: object, num_tokens: int) -> tuple[float, float]:
        raise RuntimeError("no <linker>\nfound")

    monkeypatch.setattr(hugging_face, "why_not_compiled", lambda model, is_quick: "")
    monkeypatch.setattr(hugging_face, "compiled", fails)
    line = next(
        line for line in hugging_face.speed_lines(models) if line.item == "static · L4"
    )  # no later one: they compile
    assert line.measured is None
    assert "it could not be compiled (RuntimeError: no <linker> found)" in line.note


def test_what_is_of_another_type_does_not_agree() -> None:
    line = SeedLine(document="d", table="max", item="i", published=0, measured=False)
    assert (checked(line).agrees, checked(line).must_agree) == (False, True)
    same = checked(replace(line, measured=0))
    assert (same.agrees, same.must_agree) == (True, True)


def test_all_lines_are_as_approved(table: Table) -> None:
    """What is printed beside what was measured; of what a clock decides, whether there is any. Then a page of them."""
    lines = [_without_clock(line) for name in TABLES for line in table(name)]
    rows = [*map(as_row, page(lines).partition("</style>")[2].splitlines())]
    approve(Path(__file__).parent / "approved" / "lines.txt", rows, whole=True)


def as_row(line: str) -> str:
    """A line of the page as it is read: cells between bars."""
    return unescape(re.sub(r"<[^>]+>", "", re.sub(r"</t[dh]><t[dh][^>]*>", " | ", line)))


def _without_clock(line: SeedLine) -> SeedLine:
    has_clock = line.unit in ("ms", "×", "tokens/s") and line.measured is not None
    note = re.sub(r"[\d.]+ (s here|×)|[\d.]+%", r"… \1", line.note)
    return replace(line, measured=0.5 * (line.at or 3.0) if has_clock else line.measured, note=note)


# ---- the page and the command ------------------------------------------------------------------------------------


class Tags(HTMLParser):
    """What is opened and closed, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag not in ("meta", "circle", "path", "polyline"):
            self.open.append(tag)
        assert not any(name in ("src", "href") or name.startswith("on") for name, _ in attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_page_is_whole_needs_nothing_and_escapes_everything() -> None:
    hostile = '<script>alert("1")</script> & <img src=x onerror=y>'
    lines = [
        SeedLine(document=hostile, table="lengths", item=hostile, published=hostile, measured=2.0, unit=hostile,
                 note=hostile, on=hostile, series=hostile, at=at)
        for at in (16.0, 512.0)
    ]  # fmt: skip
    tags = Tags()
    tags.feed(page(lines))
    assert tags.open == []
    assert not tags.seen & {"script", "img", "link"}
    assert "polyline" in tags.seen
    assert tags.text.count(hostile) >= 10


def test_figures_as_people_read_them() -> None:
    assert [shown(value) for value in (None, True, 12345, 0.81, 1509.9, "x", (1.0, 2.5))] == [
        "–", "yes", "12,345", "0.81", "1,510", "x", "1, 2.5",
    ]  # fmt: skip


def test_the_command_streams_lines_and_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    twin, html = Twin(capsys), tmp_path / "seeds.html"
    lines = twin.lines("seeds", "--quick", "--tables", "max,memory", "--html", html)
    assert {line["table"] for line in lines} == {"max", "memory"}
    assert lines[0]["published"] == lines[0]["measured"] == 18.9
    assert "536.9" in html.read_text("utf-8")
    status, out, _ = twin.run("seeds", "--quick", "--tables", "max")
    assert status == 0
    assert any(line.startswith("bytes_per_block") and "4,718,592" in line for line in out.splitlines())
    assert "  on the config alone" in out.splitlines()
    assert "There is no table 'x'" in twin.refused("seeds", "--tables", "x")
    assert "'0' is no whole number" in twin.refused("seeds", "--steps", "0")
    assert "is a folder" in twin.refused("seeds", "--html", tmp_path)
    status, out, _ = twin.run("seeds", "--list")
    assert [line.split()[0] for line in out.splitlines()] == list(TABLES)
    json.dumps(lines)


def test_what_the_chapter_computes_and_does_not_print_is_not_called_published(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["seeds", "--quick", "--tables", "memory", "--html", str(tmp_path / "page.html")]) in (0, None)
    title, head, *lines = [
        line for line in capsys.readouterr().out.splitlines() if line and not line.startswith("  on ")
    ]
    assert title == TABLES["memory"].title
    assert head.split("  ")[-1].strip() == "measured"
    assert "by the chapter's formula" in head
    at = next(number for number, line in enumerate(lines) if "published" in line)
    assert all("float16" in line for line in lines[:at])
    assert at == 9
    assert lines[at + 1].startswith("the text: ")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.index("by the chapter&#x27;s formula") < page.index("GPT-2 Small") < page.index("<th>published</th>")
