"""What an engine loop does and whether it gets on, for whoever watches it from another thread."""

from __future__ import annotations

from engine.wire.commands import (
    Bench,
    CheckParity,
    Command,
    Continue,
    EstimateExport,
    Export,
    FindModels,
    Fork,
    LoadModel,
    MapDamage,
    MeasureRegret,
    OpenSnapshot,
    Redo,
    RemoveSequence,
    Rewind,
    SetCache,
    SubmitPrompt,
    Sweep,
    TakeSlice,
    Tokenize,
    Watch,
    WhatIf,
)

WORDS: dict[type, str] = {
    LoadModel: "loading a model",
    SetCache: "changing the cache",
    SubmitPrompt: "taking a prompt",
    Rewind: "going back",
    Redo: "doing the steps once more",
    Fork: "forking a sequence",
    RemoveSequence: "removing a sequence",
    TakeSlice: "taking a picture",
    Watch: "taking pictures",
    Tokenize: "counting tokens",
    Export: "writing a file",
    EstimateExport: "measuring an export",
    OpenSnapshot: "opening a snapshot",
    Continue: "going on from a snapshot",
    FindModels: "looking for models",
    WhatIf: "trying another cache",
    CheckParity: "comparing with another cache",
    MapDamage: "measuring what the codec does",
    MeasureRegret: "removing rows, one after the other",
    Sweep: "a sweep",
    Bench: "a benchmark",
}


class Activity:
    """`what` the loop does, empty while it waits; `num_marks` advances whenever it gets on: with every command, step,
    chunk, layer of a forward and measured piece. Written by the loop alone, one assignment at a time: no lock."""

    def __init__(self) -> None:
        self.what = "starting"
        self.num_marks = 0

    def mark(self) -> None:
        self.num_marks += 1

    def begin(self, what: str | Command) -> None:
        """From now on it does this; a command in words of its own."""
        self.what = what if isinstance(what, str) else WORDS.get(type(what), "a command")
        self.mark()

    def rest(self) -> None:
        """It waits for a command, or for the pace."""
        self.what = ""
        self.mark()
