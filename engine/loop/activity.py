"""What an engine loop is doing and whether it makes progress, to be read from another thread."""

from __future__ import annotations

from engine.wire import commands, devices, exporting, measuring

WORDS: dict[type, str] = {
    commands.LoadModel: "loading a model",
    commands.SetCache: "changing the cache",
    commands.SubmitPrompt: "taking a prompt",
    commands.GoTo: "going to another moment",
    commands.BeginBranch: "beginning another branch",
    commands.DeleteBranch: "deleting a branch",
    commands.UndoEdit: "undoing an edit",
    commands.RedoEdit: "returning to an edit",
    commands.NextPhase: "a step in phases",
    commands.Redo: "doing the steps once more",
    commands.Fork: "forking a sequence",
    commands.JoinBranches: "taking the sequences of other branches",
    commands.RemoveSequence: "removing a sequence",
    commands.TakeSlice: "taking a picture",
    commands.Watch: "taking pictures",
    commands.Tokenize: "counting tokens",
    commands.PreviewPrompt: "rendering a conversation",
    exporting.Export: "writing a file",
    exporting.EstimateExport: "measuring an export",
    commands.OpenSnapshot: "opening a snapshot",
    commands.Continue: "going on from a snapshot",
    commands.CloseSnapshot: "closing a snapshot",
    commands.FindModels: "looking for models",
    devices.FindDevices: "looking for devices",
    devices.ForecastLoad: "measuring a model",
    devices.UnloadModel: "letting the model go",
    measuring.WhatIf: "trying another cache",
    measuring.CheckParity: "comparing with another cache",
    measuring.MapDamage: "measuring what the codec does",
    measuring.MeasureRegret: "removing rows, one after the other",
    measuring.Sweep: "a sweep",
    measuring.Bench: "a benchmark",
}


class Activity:
    """`what` the loop does in words, empty while it waits; `num_marks` grows with every sign of progress: a command, a
    step, a chunk, a layer of a forward, a measured piece. Only the loop writes, one assignment at a time: no lock."""

    def __init__(self) -> None:
        self.what = "starting"
        self.num_marks = 0

    def mark(self) -> None:
        self.num_marks += 1

    def begin(self, what: str | commands.Command) -> None:
        """Set what the loop does from now on, for a command in the words of `WORDS`."""
        self.what = what if isinstance(what, str) else WORDS.get(type(what), "a command")
        self.mark()

    def rest(self) -> None:
        """Note that the loop waits for a command, or for the pace of a run."""
        self.what = ""
        self.mark()
