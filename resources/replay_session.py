"""Repeat a session of KV Loupe, edits by hand included, and compare every number of its steps with what was recorded.

    python THIS_FILE [MODEL] [--threads N] [--allow-file SNAPSHOT] [--allow-rounding]

MODEL is `bundled` or the folder of the model that the session ran. It needs KV Loupe's `engine`, and no window.
Exit 0: all is as it was. 1: a token, a number or a checksum is another one.
"""

import argparse
import json
from pathlib import Path

from engine.analysis.tolerance import TOLERANCES
from engine.errors import InputError
from engine.model.loader import load
from engine.saved.named import decoded
from engine.saved.session import SavedSession
from engine.session.replay import Replay, only_rows_of
from engine.session.session import Session
from engine.snapshot.gather import snapshot_of
from engine.snapshot.resume import rows_of_file
from engine.snapshot.write import checksum_of
from engine.spec.model import ModelSpec
from engine.wire.exporting import Export

DATA = json.loads("{}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="bundled")
    parser.add_argument("--threads", type=int, default=DATA["num_threads"] or None)
    parser.add_argument("--allow-file", type=Path, action="append", default=[], help="a file that an edit may read")
    parser.add_argument("--allow-rounding", action="store_true", help="K and V of other bytes are no difference")
    arguments = parser.parse_args()
    try:
        return repeat(arguments)
    except InputError as error:
        raise SystemExit(str(error)) from None


def repeat(arguments):
    """Do every step and every edit once more, and tell what is not as it was."""
    model = load(ModelSpec(arguments.model, DATA["dtype"], num_threads=arguments.threads))
    if model.info.fingerprint != DATA["fingerprint"]:
        raise SystemExit(f"'{model.info.name}' is not the model of this session: name the folder of '{DATA['model']}'.")
    saved = decoded(json.dumps(DATA["session"]), SavedSession)
    session = Session(model, saved.first_cache)
    session.open_rows = only_rows_of(arguments.allow_file, rows_of_file)
    replay, farthest, count = Replay(session, saved.nodes), 0.0, 0
    for node, record, _ in replay.steps():
        count += record is not None
        for seq_id, expected in DATA["numbers"].get(str(node.step), {}).items():
            farthest = max(farthest, difference(record.of(int(seq_id)), expected))
    replay.finish(saved.live, saved.pending)
    others = [each for each in replay.differences if each.layer is None or not arguments.allow_rounding]
    for each in others:
        print(each.describe())
    num_edits = sum(change["type"] == "EditMade" for node in DATA["session"]["nodes"] for change in node["changes"])
    edits = f" and {num_edits} edit{'s' if num_edits > 1 else ''}" if num_edits else ""
    print(f"{count} steps{edits} repeated; the number that is farthest off is off by {farthest:g}")
    sequence = session.sequence(DATA["seq_id"])
    token_ids = sequence.token_ids[: sequence.num_tokens]
    print(json.dumps(token_ids))
    num_same, num_all = same_tensors(session), len(DATA["checksums"])
    if num_all:
        print(f"{num_same} of {num_all} tensors of K and V have the same bytes")
    is_same = not others and token_ids == (DATA["token_ids"] or token_ids)
    is_same &= num_same == num_all or arguments.allow_rounding
    return 0 if is_same and farthest <= TOLERANCES[DATA["dtype"]].logit else 1


def same_tensors(session):
    """How many tensors of K and V have the checksum that was recorded; another processor may round otherwise."""
    tensors = snapshot_of(session, Export(Path("unwritten"), DATA["seq_id"])).tensors
    kind, expected = DATA["checksum_kind"], DATA["checksums"]
    return sum(name in tensors and checksum_of(tensors[name], kind) == expected[name] for name in expected)


def difference(found, expected):
    """How far the numbers of a step are from those that were recorded."""
    # tokens of known pages are computed as well, before those that were
    computed = zip(found.surprisal[::-1], expected["surprisal"][::-1], strict=False)
    pairs = [(found.entropy, expected["entropy"]), *computed]
    logprobs = {candidate.token_id: candidate.logprob for candidate in found.candidates}
    pairs += [(logprobs.get(int(token), float("inf")), logprob) for token, logprob in expected["logprobs"].items()]
    return max((apart(a, b) for a, b in pairs if a is not None and b is not None), default=0.0)


def apart(one, other):
    """By how much two numbers differ; a NaN is like another NaN and unlike all else."""
    if one == other or (one != one and other != other):
        return 0.0
    return abs(one - other) if one == one and other == other else float("inf")


if __name__ == "__main__":
    raise SystemExit(main())
