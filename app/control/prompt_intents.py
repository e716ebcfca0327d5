"""What a person may wish of prompts and of the sequences that come of them."""

from __future__ import annotations

from app.control.asking import Asking
from app.models.sequence_status import selected_info
from engine.errors import InputError
from engine.spec.chat import Chat
from engine.spec.sampling import Prompt, SamplingParams
from engine.wire import commands

PromptContent = str | tuple[int, ...] | Chat  # of a prompt


class PromptIntents(Asking):
    """Prompts, sequences and how their tokens are chosen."""

    def on_prompt_submitted(self, content: PromptContent, sampling: SamplingParams) -> None:
        """A new run from a text or token ids, which are read, or from a conversation, which is answered as well."""
        self._submit(content, sampling, alone=True, num_steps=None if isinstance(content, Chat) else 1)

    def on_chat_continued(self, chat: Chat, seq_id: int, sampling: SamplingParams) -> None:
        """A conversation in the place of the sequence that it goes on from, and its answer."""
        self._submit(chat, sampling, alone=False, num_steps=None, after=seq_id)

    def on_prompt_added(self, content: PromptContent, sampling: SamplingParams) -> None:
        """Another sequence beside those that are there: it is read, and no other is stepped for it."""
        self._submit(content, sampling, alone=False)

    def on_prompt_begun(self, content: PromptContent, sampling: SamplingParams) -> None:
        """A new run, whose first step is taken in phases."""
        self._submit(content, sampling, alone=True, num_steps=0, in_phases=True)

    def _submit(
        self,
        content: PromptContent,
        sampling: SamplingParams,
        *,
        alone: bool,
        num_steps: int | None = 1,
        in_phases: bool = False,
        after: int | None = None,
    ) -> None:
        try:
            if isinstance(content, str):
                prompt = Prompt(text=content, sampling=sampling)
            elif isinstance(content, Chat):
                prompt = Prompt(chat=content, sampling=sampling)
            else:
                prompt = Prompt(token_ids=content, sampling=sampling)
        except InputError as error:
            self._models.status.fail(str(error))
        else:
            self._ask_for_sequence(commands.SubmitPrompt(prompt, alone, num_steps, in_phases, after))

    def on_text_edited(self, text: str) -> None:
        """Count the tokens of a text while it is typed, where somebody is there to count."""
        if not self._models.status.is_engine_lost:
            self._requests.texts.ask(text)
            self._waiting.wake()

    def on_chat_edited(self, chat: Chat, after: int | None) -> None:
        """Render a conversation while it is written, and say how much of a sequence it would keep."""
        if not self._models.status.is_engine_lost:
            self._requests.texts.ask_of_chat(chat, after)
            self._waiting.wake()

    def on_sampling_changed(self, sampling: SamplingParams) -> None:
        """How the selected sequence goes on, or where there is none, how the next prompt does."""
        info = selected_info(self._models)
        self._send(commands.SetSampling(sampling, info.seq_id if info is not None else None))
        if (step := self._models.selection.now.step) is not None and info is not None:
            self._models.status.notify(
                f"Changed for the live moment, not for step {step}: go there first to change what came of it"
            )

    def on_forked(self, seq_id: int) -> None:
        """A branch of a sequence, from the step that is looked at."""
        self._ask_for_sequence(commands.Fork(seq_id, self._models.selection.now.step))

    def _ask_for_sequence(self, command: commands.SubmitPrompt | commands.Fork) -> None:
        self._requests.sequences.expect(self._send(command), command)

    def on_joined(self, steps: tuple[int, ...]) -> None:
        """The sequences of other moments beside those of the live one, as one batch."""
        self._models.selection.update(step=None)
        self._requests.sequences.expect_beside(self._send(commands.JoinBranches(steps)))

    def on_sequence_stopped(self, seq_id: int) -> None:
        self._send(commands.StopSequence(seq_id))

    def on_sequence_removed(self, seq_id: int) -> None:
        """Its pictures are given up first: the engine cannot answer for it any more."""
        status = self._models.status.now
        others = [info.seq_id for info in status.sequences if info.seq_id != seq_id] if status is not None else []
        if others and self._models.selection.now.seq_id == seq_id:
            self._models.selection.update(seq_id=others[-1], position=None)
        self._send(commands.RemoveSequence(seq_id))
