"""Texts of tokens and numbers: nothing hides, nothing acts, nothing is rounded into a lie."""

from __future__ import annotations

import math
import random
import re
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from app.draw import format as fmt
from app.draw.format import bytes_words, divergence_words

HOSTILE = (
    "\x00\x07\x1b[31m\u202e\u2066\u200b\ufeff\ud800\udfff\u00ad\u3164\u2800\u0301\ufe0f\U000e0041"
    "<b>&lt;·⏎⇥◌\\\n\r\t \u2028é漢🙂\ufffd"
)


def hostile_strings(count: int) -> list[str]:
    rng = random.Random(7)
    strings = []
    for _ in range(count):
        length = rng.randrange(1, 9)
        strings.append(
            "".join(rng.choice(HOSTILE) if rng.random() < 0.7 else chr(rng.randrange(0x11000)) for _ in range(length))
        )
    return strings


def test_five_thousand_hostile_strings_have_nothing_hidden() -> None:
    for text in hostile_strings(5000):
        shown = fmt.visible(text)
        assert shown
        shown.encode("utf-8")  # a lone surrogate would raise
        hidden = [c for c in shown if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp")]
        assert not hidden, (ascii(text), ascii(shown))
        assert unicodedata.category(shown[0])[0] != "M", ascii(text)


def test_different_texts_stay_different() -> None:
    texts = set(hostile_strings(5000)) | {"\\x00", "\x00", "\\\\x00", " ", "·", "\n", "⏎", "\\u202e", "\u202e"}
    assert len({fmt.visible(text) for text in texts}) == len(texts)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (" cat", "·cat"), ("\n", "⏎"), ("\t", "⇥"), ("\x00", "\\x00"), ("\u202e", "\\u202e"), ("\u200b", "\\u200b"),
        ("\ud800", "\\ud800"), ("\U000e0041", "\\U000e0041"), ("<b>", "<b>"), ("\u0301", "◌\u0301"), ("\r", "\\x0d"),
        ("·", "\\xb7"), ("\\", "\\\\"), ("\u3164", "\\u3164"), ("é", "é"), ("\xa0", "\\xa0"),
    ],
)  # fmt: skip
def test_what_each_character_becomes(text: str, shown: str) -> None:
    assert fmt.visible(text) == shown


def test_marks_do_not_pile_up() -> None:
    shown = fmt.visible("a" + "\u0301" * 50)
    assert shown.count("\u0301") == 2
    assert shown.count("\\u0301") == 48


def test_labels_are_short_even_for_a_very_long_token() -> None:
    assert fmt.token_label("x" * 1_000_000, 12) == "x" * 11 + "…"
    assert fmt.token_label("", 12) == "∅"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (122_880, "120.0 KiB"),
        (3_250_586, "3.1 MiB"),
        (-2048, "-2.0 KiB"),
        (2**45, "32.0 TiB"),
    ],
)
def test_byte_sizes(count: int, text: str) -> None:
    assert fmt.byte_size(count) == text


@pytest.mark.parametrize(
    ("ms", "text"), [(0.844, "0.84 ms"), (12.34, "12.3 ms"), (140.2, "140 ms"), (2100, "2.10 s"), (float("nan"), "–")]
)
def test_milliseconds(ms: float, text: str) -> None:
    assert fmt.milliseconds(ms) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0.0 %"), (1e-9, "<0.1 %"), (0.413, "41.3 %"), (0.99999, ">99.9 %"), (1.0, "100.0 %"), (float("nan"), "–")],
)
def test_percents_never_say_none_or_all_of_what_is_not(share: float, text: str) -> None:
    assert fmt.percent(share) == text


def test_exact_values_read_back_to_the_same_float() -> None:
    rng = np.random.default_rng(1)
    for value in (rng.normal(size=500) * 10.0 ** rng.integers(-20, 20, 500)).astype(np.float32):
        assert np.float32(fmt.exact(float(value))) == value
    assert [fmt.exact(v) for v in (float("nan"), float("inf"), float("-inf"))] == ["NaN", "+Inf", "-Inf"]


def test_a_measured_value_keeps_the_zeros_that_it_ends_with() -> None:
    """Without them, the precision of a number that changes would seem to change too."""
    values = [0.1, -0.25, 2.5, 12.0, 100.0, 99.96, 1e-5, 12345.6, 0.0]
    shown = ["0.100", "-0.250", "2.50", "12.0", "100", "100", "1.00e-05", "1.23e+04", "0"]
    assert [fmt.brief(value) for value in values] == shown
    assert [fmt.brief(value, 2) for value in (0.1, 3.0, 32.0)] == ["0.10", "3.0", "32"]
    places = (0.0, 5.0, 10.0, 100.0, 0.25, 2000.0, 1e-5, -0.5)
    assert [fmt.tick_number(value) for value in places] == ["0", "5", "10", "100", "0.25", "2,000", "1e-05", "-0.5"]
    assert [fmt.tick_time(ms) for ms in (0.0, 0.05, 20.0, 500.0, 1000.0, 2500.0)] == [
        "0 ms", "0.05 ms", "20 ms", "500 ms", "1 s", "2.5 s",
    ]  # fmt: skip
    assert [divergence_words(kl) for kl in (2e-5, 2e-3, 0.2)] == ["2.00e-05 nats", "0.00200 nats", "0.200 nats"]
    times = [fmt.milliseconds(ms) for ms in (9.996, 99.96, 999.6, 12_345.0, 123_456.0)]
    assert times == ["10.0 ms", "100 ms", "1.00 s", "12.3 s", "123 s"]


def test_what_rounds_to_zero_has_no_sign() -> None:
    tiny = -0.0004
    shown = [
        fmt.decimal(-0.0), fmt.decimal(tiny), fmt.decimal(tiny, 0), fmt.milliseconds(-0.0), fmt.percent(-0.0),
        fmt.brief(-0.0), fmt.cell_number(tiny, 40), fmt.cell_number(tiny, 20), fmt.times(-0.0),
    ]  # fmt: skip
    assert shown == ["0.00", "0.00", "0", "0.00 ms", "0.0 %", "0", "0.00", "0.0", "0.0×"]
    assert fmt.decimal(-0.006) == "-0.01"
    assert fmt.decimal(12345.678, 1) == "12,345.7"
    assert [fmt.decimal(v, is_signed=True) for v in (0.5, -0.5, tiny)] == ["+0.50", "-0.50", "+0.00"]
    assert fmt.decimal(float("nan")) == "NaN"


@pytest.mark.parametrize(
    ("ratio", "words", "short"),
    [
        (0.94, "0.9×", "0.9×"),
        (9.96, "10×", "10×"),
        (99.4, "99×", "99×"),
        (100.0, "100×", ">99×"),
        (100.1, "over 100×", ">99×"),
        (1.9e12, "over 100×", ">99×"),
        (math.inf, "over 100×", ">99×"),
    ],
)
def test_a_multiple_beyond_a_hundred_has_no_digits(ratio: float, words: str, short: str) -> None:
    assert (fmt.times(ratio), fmt.brief_times(ratio)) == (words, short)
    assert len(short) <= len("9.9×")


def test_numbers_are_rounded_in_one_place() -> None:
    """Elsewhere in the window a format with decimals could write -0.00: `format` has the functions, or `z` says it."""
    root = Path(fmt.__file__).parents[1]
    rounding = re.compile(r"\{[^{}\n]*:[^{}\nz]*\.\d+[fge]\}")
    found = [
        f"{path.relative_to(root)}:{number}"
        for path in sorted(root.rglob("*.py"))
        if path.name not in ("format.py", "preflight.py")
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if rounding.search(line)
    ]
    assert found == []


def test_numbers_in_cells_keep_their_decimals() -> None:
    assert [fmt.cell_number(v, 40) for v in (0.00055, -1.0, 123.4, 1e7)] == ["0.00", "-1.00", "123", "1e+07"]
    assert fmt.cell_number(-1.26, 30) == "-1.3"


def test_a_line_gives_way_by_whole_parts_and_words() -> None:
    text = "colours per layer · a cell: largest of 2 tokens"
    assert fmt.whole_words(text, len(text), len) == text
    assert fmt.whole_words(text, len(text) - 1, len) == "colours per layer"
    assert fmt.whole_words(text, 16, len) == "colours per …"
    assert fmt.whole_words(text, 12, len) == ""
    assert fmt.whole_words("surprisal", 8, len) == ""
    full = "Sequence 0: the model's context is full: go back, take a cache that keeps a window, or send a new prompt"
    assert fmt.whole_words(full, 60, len) == "Sequence 0: the model's context is full"
    assert fmt.whole_words(full, 20, len) == "Sequence 0"
    assert fmt.whole_words("hatched: evicted by now", 18, len) == "hatched: evicted …"
    assert fmt.whole_words("sinks 4 · window 256", 19, len) == "sinks 4"


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0, "0.0 %"), (0.0004, "<0.1 %"), (0.0005, "0.1 %"), (0.5, "50.0 %"), (0.9994, "99.9 %"), (0.9995, ">99.9 %"),
        (0.99979, ">99.9 %"), (1, "100.0 %"),
    ],
)  # fmt: skip
def test_what_is_not_all_never_reads_as_all(share: float, words: str) -> None:
    assert fmt.percent(share) == words


def test_words_never_make_a_change_look_like_none() -> None:
    assert divergence_words(0) == "0 nats"
    assert divergence_words(1e-9) == "<1e-6 nats"
    assert divergence_words(0.0123) == "0.0123 nats"
    assert divergence_words(math.nan) == "NaN: no distribution"
    assert divergence_words(math.inf) == "∞ nats"
    assert bytes_words(2048, 512) == "2.0 KiB → 512 B"
