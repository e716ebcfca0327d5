"""Intents about steps, runs and the stop conditions that halt a run."""

from __future__ import annotations

from msgspec.structs import replace

from app.control.intent_sender import IntentSender
from app.control.pace import Pace
from engine.spec.stops import Stop
from engine.wire import commands


class StepIntents(IntentSender):
    """Step, run, set the pace, look at earlier steps, and set stop conditions."""

    def on_step(self) -> None:
        """Do one step; while an earlier step is shown, show the next recorded one instead. A step that is suspended
        between two of its phases is finished, whichever step is shown."""
        status = self._models.status.now
        if status is not None and status.suspended is not None:
            self._models.selection.update(step=None)
        if self._models.selection.now.step is None:
            self._send_steps(commands.Step())
        else:
            self._look_from_here(+1)

    def on_next_phase(self) -> None:
        """Begin a step in phases, or advance the suspended one to its next phase; the live step is shown."""
        self._models.selection.update(step=None)
        self._send_steps(commands.NextPhase())

    def on_step_back(self) -> None:
        """Show the step before the one that is shown."""
        self._look_from_here(-1)

    def on_run_or_pause(self) -> None:
        if self._models.status.is_running:
            self._send(commands.Pause())
        else:
            self.on_run_to(None)

    def on_run_to(self, num_steps: int | None) -> None:
        """Run `num_steps` steps from the live one; None: until paused, finished or the context is full."""
        self._models.selection.update(step=None)
        self._send_steps(commands.Run(num_steps))

    def on_run_here(self) -> None:
        """Run to the chosen place on the timeline: the number of steps that were chosen ahead, or the number by which
        the step shown is ahead of the live one on a branch that was left. A step that is not ahead is made live."""
        now, timeline = self._models.selection.now, self._models.timeline
        if num_steps := now.ahead or timeline.num_steps_ahead:
            self._models.selection.update(step=None, ahead=0)
            self.on_run_to(num_steps)
        elif now.step is not None:
            self._send(commands.GoTo(now.step))

    def on_run_to_token(self) -> None:
        """Run until the sequence reaches the selected token's position if the live step is before it; otherwise make
        the step that fed the token the live one."""
        now, timeline = self._models.selection.now, self._models.timeline
        token = timeline.token(now.seq_id, now.position) if now.position is not None else None
        if token is None:
            return
        if timeline.num_steps_ahead and timeline.live_path.num_tokens(now.seq_id) <= token.position:
            self.on_run_until(f"tokens >= {token.position + 1} and sequence = {now.seq_id}")
        elif token.step != timeline.live:
            self._send(commands.GoTo(token.step))

    def on_run_to_chosen(self, chosen: int | str) -> None:
        """Run for a number of steps (int), or until a condition holds (str)."""
        if isinstance(chosen, int):
            self.on_run_to(chosen)
        else:
            self.on_run_until(chosen)

    def on_run_until(self, condition: str) -> None:
        """Run from the live step until a condition holds."""
        self._models.selection.update(step=None)
        self._send_steps(commands.Run(until=condition))

    def on_step_of_token(self) -> None:
        """Show the step that fed the selected token."""
        now = self._models.selection.now
        token = self._models.timeline.token(now.seq_id, now.position) if now.position is not None else None
        if token is not None:
            self._models.selection.update(step=token.step)

    def on_match_wanted(self, direction: int) -> None:
        """Show the next (+1) or previous (-1) step at which the condition searched for held."""
        step = self._models.stops.next_match(self._models.selection.now.step, direction)
        if step is not None:
            self._models.selection.update(step=step)

    def on_all_stops_switched(self) -> None:
        """Enable all stops if at least one is disabled, else disable all."""
        stops = self._models.stops.stops
        is_enabled = not all(stop.is_enabled for stop in stops)
        self.on_stops_changed(tuple(replace(stop, is_enabled=is_enabled) for stop in stops))

    def on_stops_changed(self, stops: tuple[Stop, ...]) -> None:
        """Replace the conditions that halt a run."""
        self._requests.stopping.set(stops)
        self._waiting.wake()

    def on_cancel(self) -> None:
        self._requests.measurements.cancel()
        self._requests.comparing.stop_waiting()
        self._send(commands.Cancel())

    def set_pace(self, pace: Pace) -> None:
        """Set how fast a run goes, and how often pictures of it are sent."""
        self._requests.pace.choose(pace.command, has_engine=self._models.status.now is not None)

    def _look_from_here(self, direction: int) -> None:
        timeline, step = self._models.timeline, self._models.selection.now.step
        if direction > 0 and timeline.is_elsewhere and step == timeline.tip:
            self._models.status.notify(f"Step {step} is the newest of its branch: go there to step on from it")
        else:
            self._models.selection.update(step=timeline.neighbour(step, direction))
