"""Intents about the history tree: go to a step, begin a branch, edit the cache by hand, name, bookmark."""

from __future__ import annotations

from msgspec.structs import replace

from app.control.intent_sender import IntentSender
from app.models.bookmarks import place_of
from app.models.branches import steps_ahead
from app.models.sequence_status import FULL, selected_info, why_ended
from engine.errors import InputError
from engine.spec.bookmark import Bookmark, BookmarkTarget
from engine.spec.edit import Edit
from engine.spec.sampling import SamplingParams
from engine.wire import commands
from engine.wire.message import Command


class TreeIntents(IntentSender):
    """Go to steps, begin, name and delete branches, and set bookmarks."""

    def on_go_on_from_here(self) -> None:
        """Make the step that is shown the live one."""
        step = self._models.selection.now.step
        if step is not None:
            self.on_gone_to(step)

    def on_gone_to(self, step: int) -> None:
        """Make a step of any branch the live one."""
        self._send(commands.GoTo(step))

    def on_returned(self) -> None:
        """Make the newest of the steps after the live one, which were left by going back, the live one again."""
        if behind := steps_ahead(self._models.history, self._models.history.live):
            self.on_gone_to(behind[-1])

    def on_token_forced(self, token_id: int) -> None:
        """Feed a token of the user's choice in place of the chosen one, and do the step; from the step that is
        shown."""
        seq_id = self._models.selection.now.seq_id
        self._begin_branch(commands.BeginBranch(seq_id, None, (token_id,)), commands.Force(seq_id, (token_id,)))

    def on_text_forced(self, text: str) -> None:
        """Feed the tokens of a text next, and do the step; from the step that is shown."""
        seq_id = self._models.selection.now.seq_id
        self._begin_branch(commands.BeginBranch(seq_id, None, text=text), commands.ForceText(seq_id, text))

    def on_sampling_tried(self, sampling: SamplingParams) -> None:
        """Choose the next token with other sampling, and do the step; from the step that is shown."""
        seq_id = self._models.selection.now.seq_id
        self._begin_branch(
            commands.BeginBranch(seq_id, None, sampling=sampling), commands.SetSampling(sampling, seq_id)
        )

    def _begin_branch(self, branch: commands.BeginBranch, from_live: Command) -> None:
        step, info = self._models.selection.now.step, selected_info(self._models)
        if step is not None:
            self._take_failure_back()
            self._waiting.expect_pictures()
            self._requests.sequences.begin_branch(replace(branch, step=step))
            self._waiting.wake()
        elif info is not None and info.stop in FULL:
            self._models.status.notify(f"Sequence {info.seq_id}: {why_ended(info)}")
        else:
            self._send(from_live)
            self._send_steps(commands.Step())

    def on_kept_limit_chosen(self, num_bytes: int | None) -> None:
        """Limit the memory for the kept state of steps that were left, in bytes; None keeps the engine's default."""
        command = commands.SetKeptLimit(num_bytes) if num_bytes is not None else None
        self._requests.kept_limit.choose(command, has_engine=self._models.status.now is not None)

    def on_branch_deleted(self, step: int) -> None:
        """Delete a step of the history tree and all steps after it."""
        self._send(commands.DeleteBranch(step))

    def on_branch_named(self, first: int, name: str) -> None:
        """Name the branch that begins with step `first`; an empty name removes the name."""
        self._models.history.rename(first, name)

    def on_bookmark_put(self, bookmark: Bookmark) -> None:
        """Set a bookmark, or change its note."""
        try:
            self._models.bookmarks.put(bookmark)
        except InputError as error:
            self._models.status.fail(str(error))

    def on_bookmark_wanted(self, target: BookmarkTarget) -> None:
        """Show the place of a bookmark, whichever branch its step is on."""
        models = self._models
        if target.step not in models.history:
            models.status.notify(f"Step {target.step} is not there any more: its branch was deleted")
            return
        models.selection.update(step=target.step, **place_of(target))


class EditIntents(IntentSender):
    """Edit the rows and tokens of the live step, undo and redo."""

    def on_edited(self, edit: Edit) -> None:
        """Make an edit on the live step."""
        if self._models.selection.now.step is not None:
            self._models.status.notify("Edits are made on the live step: go to this one first, then edit")
            return
        try:
            self._check(edit)
        except InputError as error:
            self._models.status.fail(str(error))
        else:
            self._send(commands.MakeEdit(edit))

    def on_edits_repeated(self, edits: tuple[Edit, ...]) -> None:
        """Repeat edits that were made before or read from a file, in their order. If one of them is not possible on the
        live step, none is sent."""
        try:
            for edit in edits:
                self._check(edit)
        except InputError as error:
            self._models.status.fail(str(error))
            return
        for edit in edits:
            self.on_edited(edit)

    def _check(self, edit: Edit) -> None:
        """Raise `InputError` if an edit cannot be made on the live step."""
        if (model := self._models.status.model) is not None:
            edit.check(model.geometry, self._models.timeline.num_tokens(edit.seq_id))

    def on_edited_text(self, text: str) -> None:
        """Have the tokens counted of a text that is typed for an edit."""
        if not self._models.status.is_engine_lost:
            self._requests.edited_texts.ask(text)
            self._waiting.wake()

    def on_edit_undone(self) -> None:
        """Go back to the step before the newest edit."""
        self._send(commands.UndoEdit())

    def on_edit_redone(self) -> None:
        """Go to the edit that the last undo left."""
        self._send(commands.RedoEdit())
