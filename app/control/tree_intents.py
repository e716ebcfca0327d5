"""What a person may wish of the history tree: go to a moment, begin another branch, edit by hand, name, bookmark."""

from __future__ import annotations

from msgspec.structs import replace

from app.control.asking import Asking
from app.models.bookmarks import place_of
from app.models.branches import beyond
from app.models.sequence_status import FULL, selected_info, why_ended
from engine.errors import InputError
from engine.spec.bookmark import Bookmark, BookmarkTarget
from engine.spec.edit import Edit
from engine.spec.sampling import SamplingParams
from engine.wire import commands


class TreeIntents(Asking):
    """Moments, branches and bookmarks."""

    def on_go_on_from_here(self) -> None:
        """Make the step that is looked at the live one."""
        step = self._models.selection.now.step
        if step is not None:
            self.on_gone_to(step)

    def on_gone_to(self, step: int) -> None:
        """Make a moment of any branch the live one."""
        self._send(commands.GoTo(step))

    def on_returned(self) -> None:
        """Make the newest moment of what was left behind the live one again."""
        if behind := beyond(self._models.history, self._models.history.live):
            self.on_gone_to(behind[-1])

    def on_token_forced(self, token_id: int) -> None:
        """Feed another token than the one that was chosen, and step: from the step that is looked at."""
        seq_id = self._models.selection.now.seq_id
        self._begin_branch(commands.BeginBranch(seq_id, None, (token_id,)), commands.Force(seq_id, (token_id,)))

    def on_text_forced(self, text: str) -> None:
        """Feed the tokens of a text next, and step: from the step that is looked at."""
        seq_id = self._models.selection.now.seq_id
        self._begin_branch(commands.BeginBranch(seq_id, None, text=text), commands.ForceText(seq_id, text))

    def on_sampling_tried(self, sampling: SamplingParams) -> None:
        """Choose the next token in another way, and step: from the step that is looked at."""
        seq_id = self._models.selection.now.seq_id
        self._begin_branch(
            commands.BeginBranch(seq_id, None, sampling=sampling), commands.SetSampling(sampling, seq_id)
        )

    def _begin_branch(self, branch: commands.BeginBranch, from_live: commands.Command) -> None:
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
        """Moments that were left may take so many bytes; None leaves it to the engine."""
        command = commands.SetKeptLimit(num_bytes) if num_bytes is not None else None
        self._requests.kept_limit.choose(command, has_engine=self._models.status.now is not None)

    def on_branch_deleted(self, step: int) -> None:
        """Forget a node of the history tree and all that came of it."""
        self._send(commands.DeleteBranch(step))

    def on_branch_named(self, first: int, name: str) -> None:
        """Call the branch that begins with a node by a name; an empty one takes its name back."""
        self._models.history.rename(first, name)

    def on_bookmark_put(self, bookmark: Bookmark) -> None:
        """Set a bookmark, or write another note on it."""
        try:
            self._models.bookmarks.put(bookmark)
        except InputError as error:
            self._models.status.fail(str(error))

    def on_bookmark_wanted(self, target: BookmarkTarget) -> None:
        """Look at the place of a bookmark, whatever branch its moment is on."""
        models = self._models
        if target.step not in models.history:
            models.status.notify(f"Step {target.step} is not there any more: its branch was deleted")
            return
        models.selection.update(step=target.step, **place_of(target))


class EditIntents(Asking):
    """Edits of the live step, and their undoing."""

    def on_edited(self, edit: Edit) -> None:
        """Change something by hand, of the live step."""
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
        """Edits that were made before, or are in a file: all that are possible on the live step, in their order, or
        none."""
        try:
            for edit in edits:
                self._check(edit)
        except InputError as error:
            self._models.status.fail(str(error))
            return
        for edit in edits:
            self.on_edited(edit)

    def _check(self, edit: Edit) -> None:
        """Raises `InputError` where an edit cannot be made on the live step."""
        if (model := self._models.status.model) is not None:
            edit.check(model.geometry, self._models.timeline.num_tokens(edit.seq_id))

    def on_edited_text(self, text: str) -> None:
        """Count the tokens of a text that is typed for an edit."""
        if not self._models.status.is_engine_lost:
            self._requests.edited_texts.ask(text)
            self._waiting.wake()

    def on_edit_undone(self) -> None:
        """Return to before the newest edit."""
        self._send(commands.UndoEdit())

    def on_edit_redone(self) -> None:
        """Return to what the last undo left."""
        self._send(commands.RedoEdit())
