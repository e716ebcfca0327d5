"""What the models answer when they are asked, all of it: every function of models, and every property and question of a
model, over a run in which everything differs, one in pages and one that is compared; as approved."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from msgspec import structs
from PySide6.QtCore import QObject, Signal

import app.draw
import app.kit
import app.models
from app.kit import bookmark_places, edit_marks, moment_words, page_words, provenance
from app.models import Models
from engine.wire.phases import SuspendedStep
from tests.app.rich import feed, rich_models
from tests.app.rich_compared import compared_models, feed_compared
from tests.app.rich_pages import PagedRun
from tests.app.shown import value_words
from tests.approve import approve

APPROVED = Path(__file__).parent / "approved"
WORDS = (bookmark_places, edit_marks, moment_words, page_words, provenance)
MOST = 10  # answers of one question
LONG = 160  # characters of an answer
# These write, or are asked often for the same.
_WRITERS = """
    add add_node announce append ask attention_wanted begin branch cancel change_cache change_mode clear delete end fail
    fill finish fold follow forget forget_places go_to hold is_current lose_engine note notify offer
    on_selected outdate pin
    place_in put rebuild refuse refuse_pictures remove remove_nodes rename replace reset restart scan search set set_all
    set_busy set_engine set_unwritten show show_all start step_done take take_hit unpin update walk
    with_added zoom
"""
WRITERS = frozenset(_WRITERS.split())
ASKED = ("models", "history", "timeline", "slices")
SELECTED: dict[str, dict[str, Any]] = {
    "now": {},
    "another sequence": {"seq_id": 1, "position": 4},
    "an earlier step": {"step": 2, "position": 2},
    "a branch that was left": {"step": 5, "seq_id": 0, "position": 1},
    "values of a channel": {"lens": "values", "position": None, "channel": 3, "layer": 1},
    "a page of another pool": {"page": 6, "pool": 1, "position": None},
}


def values_of(models: Models) -> dict[str, Sequence[Any]]:
    """What a parameter of that name may be."""
    history, status = models.history, models.status.now
    nodes = tuple(history.steps)
    infos = status.sequences if status is not None else ()
    changes = tuple(change for step in nodes for change in history.changes(step))
    drops = tuple(filter(None, (models.evictions.all[-1:] if hasattr(models.evictions, "all") else ())))
    return {
        "models": (models,), "history": (history,), "timeline": (models.timeline,), "slices": (models.slices,),
        "seq_id": (0, 1, 7), "step": (None, *nodes[::2], *nodes[1::2], 99), "first": nodes, "tip": nodes[-2:],
        "limit": (3, 12), "max_chars": (4, 16), "layer": (1, 3), "kv_head": (0, 2), "position": (0, 2, 6, 30),
        "lens": ("keys", "values"), "channel": (None, 2), "info": infos, "index": (0, 2),
        "record": tuple(models.timeline.records)[-2:], "pool": (0, 1), "page_id": (0, 2, 6, 8, 99),
        "target": tuple(one.target for one in models.bookmarks.all), "change": changes, "changes": (changes[:2],),
        "direction": (-1, 1), "text": ("step = 90", "entropy > 2"), "drop": drops, "kind": ("wall", "head"),
        "num_tokens": (6, 11), "part": ("keys", "both"), "is_brief": (True, False), "page_size": (4,),
        "num_channels": (32,), "node": nodes[-3:], "above": (None, 2), "parent": nodes[:2],
    }  # fmt: skip


def answers(name: str, question: Callable[..., Any], values: dict[str, Sequence[Any]]) -> Iterator[str]:
    """A question with all that it can be asked of, or with some of that where there is much."""
    parameters = [one for one in inspect.signature(question).parameters.values() if one.name != "self"]
    needed = [one.name for one in parameters if one.default is one.empty or one.name in ("step", "lens", "channel")]
    if any(one not in values for one in needed):
        return
    given = list(product(*(values[one] for one in needed)))
    told: dict[str, list[str]] = {}
    for one in given[:: -(-len(given) // MOST)] if given else ():
        asked = [value_words(each) for part, each in zip(needed, one, strict=True) if part not in ASKED]
        try:
            found = value_words(question(**dict(zip(needed, one, strict=True))))
        except TypeError:  # a moment is asked for, and now is none
            continue
        except (KeyError, ValueError, IndexError) as error:
            found = type(error).__name__
        told.setdefault(found[:LONG], []).append(", ".join(asked)[:60])
    if told:
        answered = (f"  {found}  ← {' | '.join(dict.fromkeys(asked))}" for found, asked in told.items())
        yield "\n".join((f"{name}({', '.join(part for part in needed if part not in ASKED)})", *answered))


def functions(module: ModuleType) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, found in vars(module).items():
        if inspect.isfunction(found) and found.__module__ == module.__name__ and not name.startswith("_"):
            yield name, found


def of_functions(models: Models) -> Iterator[str]:
    values = values_of(models)
    listed = (importlib.import_module(f"app.models.{one.name}") for one in pkgutil.iter_modules(app.models.__path__))
    for module in (*listed, *WORDS):
        for name, found in functions(module):
            if name not in ("choose_part",):
                yield from answers(f"{module.__name__.rpartition('.')[2]}.{name}", found, values)


def of_models(models: Models) -> Iterator[str]:
    """What each model says of itself."""
    values = values_of(models)
    for place in (*Models.__dataclass_fields__, "history"):
        model = getattr(models, place)
        for name, found in inspect.getmembers(type(model)):
            if name.startswith("_") or name in WRITERS or hasattr(QObject, name) or isinstance(found, Signal):
                continue
            if isinstance(found, property):
                yield f"{place}.{name} = {value_words(getattr(model, name))[:LONG]}"
            elif inspect.isfunction(found):
                yield from answers(f"{place}.{name}", getattr(model, name), values)


def in_pages() -> Models:
    return PagedRun().models


def compared() -> Models:
    models = compared_models()
    feed_compared(models)
    return models


def with_edits() -> Models:
    models = rich_models()
    feed(models)
    return models


def between_phases() -> Models:
    models = with_edits()
    now = models.status.now
    assert now is not None
    models.status.set(structs.replace(now, suspended=SuspendedStep(11, 6, (1, 0), (6, 11), 2)))
    return models


RUNS: dict[str, Callable[[], Models]] = {
    "rich": with_edits, "between_phases": between_phases, "in_pages": in_pages, "compared": compared, "empty": Models,
}  # fmt: skip


@cache
def all_answers(run: str) -> tuple[list[str], dict[str, list[str]]]:
    """What the models say, and what the functions say of them wherever one looks."""
    models = RUNS[run]()
    start = structs.asdict(models.selection.now)
    of_itself = [*of_models(models)]
    found = {}
    for moment, change in SELECTED.items():
        models.selection.update(**change)
        found[moment] = [*of_functions(models)]
        models.selection.update(**start)
    return of_itself, found


@pytest.mark.parametrize("run", RUNS)
def test_the_models_of_a_run_answer_as_approved(qapp: object, run: str) -> None:
    """Of other runs than the rich one, and of other selections than the first, what differs."""
    of_itself, found = all_answers(run)
    usual, usually = all_answers("rich") if run != "rich" else ([], {})
    lines = ["== the models", *(line for line in of_itself if line not in usual)]
    for moment, told in found.items():
        known = {*usually.get(moment, ()), *(found["now"] if moment != "now" else ())}
        lines += ["", f"== {moment}", *(line for line in told if line not in known)]
    approve(APPROVED / f"{run}.txt", lines)
