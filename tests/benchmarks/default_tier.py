"""Which tests belong to the default tier? Those that notice most for their time, within a number of seconds.

    python -m tests.benchmarks.planted_bugs --map FILE                       # which test executes what: once, all tests
    python -m tests.benchmarks.default_tier --use FILE --seconds 400         # writes tests/full_tier.txt

Some bugs are noticed by whichever test executes their line. Any other with some chance: more where a test executes few
lines, and where its file bears the module's name. Tests are taken one after the other, each time the one that adds most
noticed bugs a second.
The result is measured with `planted_bugs --tier default` beside `planted_bugs`, on the same bugs.
"""

from __future__ import annotations

import argparse
import heapq
import json
import re
import sqlite3
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.planting import bugs
from tests.effort import LEFT_OUT, is_left_out, kept_cases

ROOT = Path(__file__).resolve().parents[2]
OVERHEAD_S = 0.007  # of every test: fixtures that are always there, and its report
LOUD = 0.4  # of all bugs: those that whichever test executes them notices
OWN_CHANCE, APPROVED_CHANCE, MOST_CHANCE = 0.35, 0.2, 0.5  # that one test notices one of the other bugs
LEAST_CHANCE = 0.05  # so that a line which only long tests execute keeps one of them
CHEAP_S = 0.3  # cases of a function that take less in all are not worth a line of the list
HEAD = """\
What only `pytest --tier full` runs, as `python -m tests.benchmarks.default_tier` wrote it: test functions by file; of a
function with cases, those that the default tier keeps.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--use", type=Path, required=True, help="what planted_bugs --map wrote")
    parser.add_argument("--seconds", type=float, default=400.0, help="of all tests that are kept, as the map has them")
    parser.add_argument("--always", default="", help="files and tests that are kept, by the beginning of their names")
    parser.add_argument("--more", action="store_true", help="what the tier has now is kept: only add to it")
    args = parser.parse_args()
    times: dict[str, float] = json.loads(args.use.with_name(args.use.name + ".times.json").read_text("utf-8"))
    executed = read_map(args.use)
    names = sorted(executed.keys() | times.keys())
    prefixes, left_out = tuple(filter(None, args.always.split(","))), kept_cases()
    always = {name for name in names if name.startswith(prefixes or ("\0",))}
    always |= {name for name in names if args.more and not is_left_out(name, left_out)}
    costs = {name: times.get(name, 0.0) + OVERHEAD_S for name in names}
    kept = with_cheap_cases(names, choose(executed, costs, args.seconds, always), costs)
    unmapped = {
        name: cases for name, cases in left_out.items() if not any(each.partition("[")[0] == name for each in names)
    }
    LEFT_OUT.write_text(HEAD + listed(names, kept, unmapped), "utf-8")
    spent = sum(times.get(name, 0.0) for name in kept)
    print(f"{len(kept)} of {len(names)} tests are kept: {spent:.0f} of {sum(times.values()):.0f} seconds")


@cache
def tried_lines(file: str) -> np.ndarray:
    """The lines of a file where a bug can be planted: no others count."""
    place = ROOT / file
    found = bugs(file, place.read_text("utf-8")) if place.exists() else []
    return np.unique(np.array([bug.line for bug in found], np.intp))


def read_map(path: Path) -> dict[str, list[tuple[str, np.ndarray]]]:
    """For each test the lines that it executes, by file."""
    found: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as lines:
        files = {
            number: re.sub(r"^.*?/(?=(?:app|engine)/)", "", place)
            for number, place in lines.execute("select id, path from file")
        }
        contexts = dict(lines.execute("select id, context from context"))
        for context, file, bits in lines.execute("select context_id, file_id, numbits from line_bits"):
            if test := contexts[context].split("|")[0]:
                here = np.flatnonzero(np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little"))
                here = np.intersect1d(here, tried_lines(files[file]))
                known = found[test].get(files[file], here)
                if len(here):
                    found[test][files[file]] = np.union1d(known, here)
    return {test: sorted(by_file.items()) for test, by_file in found.items() if by_file}


def choose(
    executed: dict[str, list[tuple[str, np.ndarray]]], costs: dict[str, float], seconds: float, always: set[str]
) -> set[str]:
    """The tests that are kept. What no line of the product tells apart, such as tests of the tests, is kept if it is
    quick."""
    firsts: dict[str, int] = {}
    for by_file in executed.values():
        for file, lines in by_file:
            firsts[file] = max(firsts.get(file, 0), int(lines[-1]) + 1)
    total = 0
    for file, length in firsts.items():
        firsts[file], total = total, total + length
    unseen = np.ones(total, np.float32)  # lines that nothing of what is kept executes
    unnoticed = np.ones(total, np.float32)  # the chance that a bug in each line, not a loud one, is not noticed by it
    chances: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for test, by_file in executed.items():
        place = Path(test.split("::")[0])
        own, folder = place.stem.removeprefix("test_"), place.parent.relative_to("tests")
        places = np.concatenate([lines + firsts[file] for file, lines in by_file]).astype(np.int32)
        chance = min(MOST_CHANCE, max(LEAST_CHANCE, 2.0 / np.sqrt(len(places))))
        chance = max(chance, APPROVED_CHANCE if "approved" in test else 0.0)
        is_own = [own.startswith(Path(file).stem) and Path(file).parent == folder for file, _ in by_file]
        each = [max(chance, OWN_CHANCE if own else 0.0) for own in is_own]
        chances[test] = places, np.repeat(np.float32(each), [len(lines) for _, lines in by_file])

    kept: set[str] = set()
    spent = 0.0

    def keep(test: str) -> None:
        nonlocal spent
        places, chance = chances.get(test, (np.empty(0, np.int32), np.empty(0, np.float32)))
        unseen[places] = 0
        unnoticed[places] *= 1 - chance
        kept.add(test)
        spent += costs[test]

    def worth(test: str) -> float:
        places, chance = chances[test]
        return float(LOUD * unseen[places].sum() + (1 - LOUD) * (unnoticed[places] @ chance)) / costs[test]

    for test, cost in costs.items():
        if test in always or (test not in chances and cost < 0.05):
            keep(test)
    waiting = [(-worth(test), test) for test in chances if test not in kept]
    heapq.heapify(waiting)
    while waiting and spent < seconds:
        _, test = heapq.heappop(waiting)
        now = worth(test)
        if waiting and now < -waiting[0][0]:
            heapq.heappush(waiting, (-now, test))
        elif now > 0:
            keep(test)
    return kept


def with_cheap_cases(names: list[str], kept: set[str], costs: dict[str, float]) -> set[str]:
    """The tests that are kept, and of their functions the rest where that is cheap: the list is for people too."""
    rest: dict[str, float] = defaultdict(float)
    for name in names:
        rest[name.partition("[")[0]] += costs[name] if name not in kept else 0.0
    return kept | {name for name in names if rest[name.partition("[")[0]] < CHEAP_S}


def listed(names: list[str], kept: set[str], unmapped: dict[str, frozenset[str]]) -> str:
    """Lines of the list: every function of which a case is left out, with the cases that are kept. Those that no map
    knows, as of the installed command, stay as they were."""
    functions: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in names:
        file, _, rest = name.partition("::")
        function, _, case = rest.partition("[")
        functions[file, function].append(case.removesuffix("]"))
    by_file: dict[str, list[str]] = defaultdict(list)
    for (file, function), cases in functions.items():
        ids = {case: f"{file}::{function}[{case}]" if case else f"{file}::{function}" for case in cases}
        stay = [case for case, name in ids.items() if name in kept]
        if len(stay) < len(cases) and not any(" | " in case for case in cases):
            by_file[file].append(f"  {function}" + (f" keeps {' | '.join(stay)}" if stay else ""))
    for name, stays in unmapped.items():
        file, _, function = name.partition("::")
        by_file[file].append(
            f"  {function}" + (f" keeps {' | '.join(sorted(stays, key=lambda case: f'{case}]'))}" if stays else "")
        )
    return "".join(f"{file}\n" + "".join(f"{line}\n" for line in lines) for file, lines in sorted(by_file.items()))


if __name__ == "__main__":
    main()
