"""Repeat a session of KV Loupe and compare every number of its steps with what was recorded.

    python THIS_FILE [MODEL] [--threads N]

MODEL is `bundled` or the folder of the model that the session ran. It needs KV Loupe's `engine`, and no window.
"""

import argparse
import json
from pathlib import Path

import msgspec

from engine.analysis.tolerance import TOLERANCES
from engine.model.loader import load
from engine.session.changes import make
from engine.session.session import Session
from engine.snapshot.gather import snapshot_of
from engine.snapshot.write import checksum_of
from engine.spec.cache import CacheSpec
from engine.spec.model import ModelSpec
from engine.wire.changes import Change
from engine.wire.exporting import Export

DATA = json.loads("{}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="bundled")
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    model = load(ModelSpec(arguments.model, DATA["dtype"], num_threads=arguments.threads))
    if model.info.fingerprint != DATA["fingerprint"]:
        raise SystemExit(f"'{model.info.name}' is not the model of this session: name the folder of '{DATA['model']}'.")
    session, farthest = repeat(model)
    allowed = TOLERANCES[DATA["dtype"]].logit
    print(f"{len(DATA['steps'])} steps repeated; the number that is farthest off is off by {farthest:g}")
    sequence = session.sequence(DATA["seq_id"])
    print(json.dumps(sequence.token_ids[: sequence.num_tokens]))
    if DATA["checksums"]:
        print(f"{num_same(session)} of {len(DATA['checksums'])} tensors of K and V have the same bytes")
    return 0 if farthest <= allowed else 1


def repeat(model):
    """Step as the session stepped, and do what was done between steps; the session, and the largest difference of any
    number."""
    caches = [msgspec.convert(spec, CacheSpec) for spec in DATA["caches"]]
    session, farthest = Session(model, caches[DATA["steps"][0]["cache"]]), 0.0
    for expected in DATA["steps"]:
        session.history.next_step = expected["step"]
        for change in msgspec.convert(expected["changes"], tuple[Change, ...]):
            make(session, change)
        if session.cache != caches[expected["cache"]]:
            session.set_cache(caches[expected["cache"]])
        for part in expected["parts"]:
            sequence = session.sequence(part["seq_id"])
            if not sequence.is_prefilling and (sequence.sampled != part["fed"][0] or sequence.stop is not None):
                session.force(part["seq_id"], tuple(part["fed"]))  # a person chose it, or sampled otherwise then
        found = {step.seq_id: step for step in session.step().sequences}
        for part in expected["parts"]:
            farthest = max(farthest, difference(found.get(part["seq_id"]), part))
    return session, farthest


def num_same(session):
    """How many tensors of K and V have the checksum that was recorded; another processor may round otherwise."""
    tensors = snapshot_of(session, Export(Path("unwritten"), DATA["seq_id"])).tensors
    kind, expected = DATA["checksum_kind"], DATA["checksums"]
    return sum(name in tensors and checksum_of(tensors[name], kind) == expected[name] for name in expected)


def difference(found, expected):
    """How far a step is from the one that was recorded; a token fed at another place is infinitely far."""
    if found is None or list(found.token_ids) != expected["fed"] or found.num_tokens != expected["num_tokens"]:
        return float("inf")
    pairs = [(found.entropy, expected["entropy"]), *zip(found.surprisal, expected["surprisal"], strict=True)]
    logprobs = {candidate.token_id: candidate.logprob for candidate in found.candidates}
    pairs += [(logprobs.get(int(token), float("inf")), logprob) for token, logprob in expected["logprobs"].items()]
    return max((abs(a - b) for a, b in pairs if a is not None and b is not None), default=0.0)


if __name__ == "__main__":
    raise SystemExit(main())
