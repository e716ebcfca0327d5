"""Which rows of a picture are exact where a cache quantises others, in words."""

from __future__ import annotations

from app.draw.format import thousands
from app.models import Models
from app.models.loaded import layer_label
from engine.wire.slices import HeadSlice, WallSlice

EXACT, DEQUANTISED = "exact", "dequantised"


# What the line over a picture is, for its legend
LINE = "line: exact from here on"


def residual_start(exact_from: int, first: int, stop: int) -> int | None:
    """Where within the positions `first … stop - 1` the rows that the codec leaves exact begin; None if all of them are
    alike."""
    return exact_from if first < exact_from < stop else None


def residual_starts(piece: WallSlice) -> dict[int, int]:
    """The same for each layer of the wall; layers whose rows are all alike are left out."""
    starts = zip(piece.layers, piece.exact_from, strict=False)  # empty where all rows are exact
    return {layer: start for layer, start in starts if residual_start(start, 0, piece.num_tokens) is not None}


def run_words(exact_from: int, first: int, stop: int) -> str:
    """What the rows of positions `first … stop - 1` are: `exact`, `dequantised`, or both, as in `dequantised, exact
    from token 64 on`."""
    if exact_from <= first:
        return EXACT
    return DEQUANTISED if exact_from >= stop else f"{DEQUANTISED}, exact from token {thousands(exact_from)} on"


def layer_rows_words(piece: WallSlice, layer: int) -> str:
    """What the rows of a layer of the wall are; empty where all rows of the wall are exact."""
    if not piece.exact_from or layer not in piece.layers:
        return ""
    return run_words(piece.exact_from[piece.layers.index(layer)], 0, piece.num_tokens)


def parts_words(models: Models, piece: WallSlice | HeadSlice) -> str:
    """Which rows of a picture are exact, and which are not: `L0 … L3: dequantised; X0 … X3: exact`. Empty where all of
    them are the same."""
    if isinstance(piece, HeadSlice):
        request = piece.request
        words = run_words(piece.exact_from, request.start, min(request.stop, request.num_tokens))
        return "" if words in (EXACT, DEQUANTISED) else words
    groups: dict[str, list[int]] = {}
    for layer in piece.layers:
        groups.setdefault(layer_rows_words(piece, layer), []).append(layer)
    if len(groups) == 1:
        words = next(iter(groups))
        return "" if words in ("", DEQUANTISED) else words
    return "; ".join(f"{_labels(models, layers)}: {words}" for words, layers in groups.items())


def source_words(models: Models, piece: object) -> str:
    """Where the rows of a picture come from, part by part if they come from several."""
    parts = parts_words(models, piece) if isinstance(piece, WallSlice | HeadSlice) else ""
    provenance = str(getattr(piece, "provenance", ""))
    if not parts or provenance == DEQUANTISED:
        return parts or provenance
    return f"{provenance} ({parts})"


def _labels(models: Models, layers: list[int]) -> str:
    """`L0 … L5`, or all of them: `L0, L2`."""
    labels = [layer_label(models, layer) for layer in layers]
    is_run = len(layers) > 2 and layers == list(range(layers[0], layers[-1] + 1)) and labels[0][0] == labels[-1][0]
    return f"{labels[0]} … {labels[-1]}" if is_run else ", ".join(labels)
