"""Hostile session files by name: what is done to a sound one, and the words of the sentence that refuses it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Attack = tuple[Callable[[dict[str, Any]], object], str]


def put(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Another value in place of one, by the names and numbers that lead there."""

    def attack(document: dict[str, Any]) -> None:
        at: Any = document
        *way, last = [int(word) if word.lstrip("-").isdecimal() else word for word in path.split(".")]
        for step in way:
            at = at[step]
        at[last] = value

    return attack


def without(path: str) -> Callable[[dict[str, Any]], None]:
    def attack(document: dict[str, Any]) -> None:
        at: Any = document
        *way, last = [int(word) if word.isdecimal() else word for word in path.split(".")]
        for step in way:
            at = at[step]
        del at[last]

    return attack


def overwrite(**changes: Any) -> dict[str, Any]:
    return {"type": "EditMade", "edit": {"type": "Zero", "seq_id": 0, "rows": {"start": 0, "stop": 1}} | changes}


REFUSED: dict[str, Attack] = {
    "another format": (put("format", "kvloupe-snapshot"), "a JSON file and no session"),
    "no format": (without("format"), "missing required field `format`"),
    "no version": (without("version"), "missing required field `version`"),
    "a newer version": (put("version", 2), "version 2 of the format and this program reads versions up to 1"),
    "a version of 2^62": (put("version", 2**62), "reads versions up to 1"),
    "version 0": (put("version", 0), "never was one"),
    "a version in words": (put("version", "1"), "Expected `int`"),
    "nodes that are none": (put("nodes", {}), "Expected `array`"),
    "a node that is a number": (put("nodes.0", 3), "Expected `object`"),
    "a node without its number": (without("nodes.0.step"), "missing required field `step`"),
    "a node in words": (put("nodes.1.step", "one"), "Expected `int`"),
    "a negative node": (put("nodes.0.step", -1), "does not come after"),
    "nodes out of order": (put("nodes.1.step", 0), "does not come after step 0"),
    "a node of 2^40": (put("nodes.3.step", 2**40), "does not come after"),
    "a node of 2^70": (put("nodes.3.step", 2**70), "does not come after"),
    "a parent that is not there": (put("nodes.1.parent", 3), "comes of step 3, which it does not have"),
    "its own parent": (put("nodes.1.parent", 1), "comes of step 1"),
    "a parent behind it": (put("nodes.1.parent", 4), "comes of step 4"),
    "a negative parent": (put("nodes.1.parent", -1), "comes of step -1"),
    "a present moment that is not there": (put("live", 3), "present step is 3"),
    "a present moment in words": (put("live", "1"), "Expected `int | null`"),
    "a step of another number": (put("nodes.1.work.step", 7), "says two things"),
    "a step in another cache": (put("nodes.1.work.cache", {"layout": "static"}), "says two things"),
    "a step that computes nobody": (put("nodes.1.work.parts", []), "computes 0 sequences"),
    "a sequence computed twice": (
        lambda d: d["nodes"][1]["work"]["parts"].append(d["nodes"][1]["work"]["parts"][0]),
        "twice",
    ),
    "a step of 5,000 sequences": (
        lambda d: put("nodes.1.work.parts", [{**d["nodes"][1]["work"]["parts"][0], "seq_id": i} for i in range(5000)])(
            d
        ),
        "computes 5,000 sequences",
    ),
    "a negative sequence": (put("nodes.1.work.parts.0.seq_id", -1), "Expected `int` >= 0 - at `.*parts.0..seq_id`"),
    "tokens computed backwards": (put("nodes.1.work.parts.0.num_tokens", 1), "which is impossible"),
    "2^40 tokens computed": (put("nodes.1.work.parts.0.num_tokens", 2**40), "Expected `int` <= 2147483647"),
    "2^30 tokens computed": (put("nodes.1.work.parts.0.num_tokens", 2**30), "which is impossible"),
    "a negative position": (put("nodes.1.work.parts.0.first_position", -3), "first_position"),
    "a negative token chosen": (put("nodes.1.work.parts.0.sampled", -1), "sampled"),
    "a token computed of 2^40": (put("nodes.1.work.parts.0.token_id", 2**40), "token_id"),
    "a stop that is none": (put("nodes.1.work.parts.0.stop", "bored"), "Invalid enum value"),
    "a token in words": (put("nodes.0.changes.0.token_ids", ["a"]), "Expected `int`"),
    "a negative token in a prompt": (put("nodes.0.changes.0.token_ids", [-1]), "Expected `int` >= 0 - at .*token_ids"),
    "an empty prompt": (put("nodes.0.changes.0.token_ids", []), "Expected `array` of length >= 1"),
    "a change of another kind": (put("nodes.0.changes.0.type", "os.system"), "Invalid value 'os.system'"),
    "a change without a kind": (without("nodes.0.changes.0.type"), "missing required field `type`"),
    "5,000 changes": (
        put("nodes.1.changes", [{"type": "SequenceStopped", "seq_id": 0}] * 5000),
        "5,000 changes at once",
    ),
    "a fork of a negative one": (
        put("nodes.1.changes", [{"type": "SequenceForked", "seq_id": 1, "parent": -1, "step": None}]),
        "Expected `int` >= 0 - at .*parent",
    ),
    "an edit of another kind": (put("nodes.1.changes", [overwrite(type="Exec")]), "Invalid value 'Exec'"),
    "an edit of a negative sequence": (put("nodes.1.changes", [overwrite(seq_id=-5)]), "it edits with a sequence"),
    "a factor in words": (put("nodes.1.changes", [overwrite(type="Scale", factor="often")]), "is no number"),
    "a cache that is none": (put("cache", {"layout": "cloud"}), "Unknown cache layout"),
    "pages of 2^40": (put("cache", {"layout": "paged", "page_size": 2**40}), "page"),
    "a temperature below zero": (put("sampling", {"temperature": -1.0}), "Temperature"),
    "a seed of 2^63": (put("sampling", {"temperature": 1.0, "seed": 2**63}), "Seed"),
    "checksums in words": (put("nodes.0.checksums", ["a"]), "Expected `int`"),
    "5,000 checksums": (put("nodes.0.checksums", [1] * 5000), "checksums of more than"),
    "a model of 5,000 layers": (
        lambda d: put(
            "model.geometry.layers", [{**d["model"]["geometry"]["layers"][0], "index": i} for i in range(5000)]
        )(d),
        "more layers than",
    ),
    "layers out of order": (put("model.geometry.layers.0.index", 7), "in order"),
    "a model with a long name": (put("model.name", "x" * 10_000), "more than the 4,096 characters"),
    "a model on no thread": (put("model.num_threads", -4), "threads cannot compute"),
    "a model without a source": (put("model.source", "   "), "The model has no name"),
    "a draft of 5 MB": (put("draft", "x" * 5_000_000), "Expected `str` of length <= 4194304 - at .*draft"),
    "a name of a branch of 300": (put("names", [[0, "x" * 300]]), "length <= 200"),
    "names in another shape": (put("names", {"0": "x"}), "Expected `array`"),
    "300 conditions": (put("stops", ["entropy > 1"] * 300), "length <= 200 - at .*stops"),
    "a long text of a token": (put("texts", {"3": "x" * 5000}), "length <= 4096"),
    "a text of a negative token": (put("texts", {"-3": "x"}), "Expected `int` >= 0"),
    "a text of no token": (put("texts", {"x": "y"}), "Expected `int`"),
    "a bookmark on Mars": (put("bookmarks", [{"target": {"type": "OnMars", "step": 1}}]), "Invalid value 'OnMars'"),
    "a negative bookmark": (put("bookmarks", [{"target": {"type": "OnStep", "step": -1}}]), "before the first step"),
    "two bookmarks on one place": (put("bookmarks", [{"target": {"type": "OnStep", "step": 1}}] * 2), "same place"),
    "pending changes of nothing": (
        put("pending", [{"type": "TokensForced", "seq_id": 0, "token_ids": []}]),
        "Expected `array` of length >= 1",
    ),
}

RAW: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "an empty file": (lambda _: b"", "truncated"),
    "cut in the middle": (lambda text: text[: len(text) // 2], "truncated"),
    "something behind it": (lambda text: text + b"x", "trailing"),
    "not UTF-8": (lambda text: text.replace(b"Once upon", b"\xff\xfe"), "(?i)utf-8"),
    "no object": (lambda _: b"[1, 2]", "Expected `object`"),
    "a hundred thousand brackets": (
        lambda _: b'{"format":"kvloupe-session","version":1,"x":' + b"[" * 100_000,
        "recursion",
    ),
    "nested nodes": (
        lambda _: b'{"format":"kvloupe-session","version":1,"nodes":' + b"[" * 50_000,
        "recursion|Expected",
    ),
    "NUL bytes": (lambda text: b"\0" * len(text), "malformed|invalid"),
    "a pickle": (lambda _: b"\x80\x04\x95cos\nsystem\n", "malformed|invalid"),
    "a number of a thousand digits": (
        lambda text: text.replace(b'"version": 1', b'"version": ' + b"9" * 1000),
        "it has version 99999999999999999999 of the format",
    ),
}


def changed(text: bytes, attack: Callable[[dict[str, Any]], object]) -> bytes:
    document = json.loads(text)
    attack(document)
    return json.dumps(document).encode()
