"""What a person may wish of steps and of the stops that halt them."""

from __future__ import annotations

from msgspec.structs import replace

from app.control.asking import Asking
from app.control.pace import Pace
from engine.spec.stops import Stop
from engine.wire import commands


class StepIntents(Asking):
    """Steps, runs, their pace, looking back, and stops."""

    def on_step(self) -> None:
        """One step on; while looking back, one recorded step towards the live one. A step that waits between two of
        its phases is finished, wherever one looks."""
        status = self._models.status.now
        if status is not None and status.suspended is not None:
            self._models.selection.update(step=None)
        if self._models.selection.now.step is None:
            self._send_steps(commands.Step())
        else:
            self._look_from_here(+1)

    def on_next_phase(self) -> None:
        """Begin a step in phases, or take the one that waits to its next; at the live step, where it is."""
        self._models.selection.update(step=None)
        self._send_steps(commands.NextPhase())

    def on_step_back(self) -> None:
        """Look at the step before."""
        self._look_from_here(-1)

    def on_run_or_pause(self) -> None:
        if self._models.status.is_running:
            self._send(commands.Pause())
        else:
            self.on_run_to(None)

    def on_run_to(self, num_steps: int | None) -> None:
        """So many steps on from the live one; None: until paused, finished or full."""
        self._models.selection.update(step=None)
        self._send_steps(commands.Run(num_steps))

    def on_run_here(self) -> None:
        """Run to the place that is chosen: so many steps ahead, or as many as the moment that is looked at is ahead of
        the live one on a branch that was left; a moment that is not ahead becomes the live one again."""
        now, timeline = self._models.selection.now, self._models.timeline
        if num_steps := now.ahead or timeline.num_steps_ahead:
            self._models.selection.update(step=None, ahead=0)
            self.on_run_to(num_steps)
        elif now.step is not None:
            self._send(commands.GoTo(now.step))

    def on_run_to_token(self) -> None:
        """Run until the sequence has the selected token's position, where the live moment is before it; else the moment
        that fed the token becomes the live one again."""
        now, timeline = self._models.selection.now, self._models.timeline
        token = timeline.token(now.seq_id, now.position) if now.position is not None else None
        if token is None:
            return
        if timeline.num_steps_ahead and timeline.live_path.num_tokens(now.seq_id) <= token.position:
            self.on_run_until(f"tokens >= {token.position + 1} and sequence = {now.seq_id}")
        elif token.step != timeline.live:
            self._send(commands.GoTo(token.step))

    def on_run_to_chosen(self, chosen: int | str) -> None:
        """So many steps, or on to where a condition holds."""
        if isinstance(chosen, int):
            self.on_run_to(chosen)
        else:
            self.on_run_until(chosen)

    def on_run_until(self, condition: str) -> None:
        """On from the live step to the one at which a condition holds."""
        self._models.selection.update(step=None)
        self._send_steps(commands.Run(until=condition))

    def on_step_of_token(self) -> None:
        """Look at the step that fed the selected token."""
        now = self._models.selection.now
        token = self._models.timeline.token(now.seq_id, now.position) if now.position is not None else None
        if token is not None:
            self._models.selection.update(step=token.step)

    def on_match_wanted(self, direction: int) -> None:
        """Look at the next step, or the previous, where the condition that is looked for held."""
        step = self._models.stops.next_match(self._models.selection.now.step, direction)
        if step is not None:
            self._models.selection.update(step=step)

    def on_all_stops_switched(self) -> None:
        """All stops on where one is off, else all off."""
        stops = self._models.stops.stops
        is_enabled = not all(stop.is_enabled for stop in stops)
        self.on_stops_changed(tuple(replace(stop, is_enabled=is_enabled) for stop in stops))

    def on_stops_changed(self, stops: tuple[Stop, ...]) -> None:
        """Other conditions halt a run from now on."""
        self._requests.stopping.set(stops)
        self._waiting.wake()

    def on_cancel(self) -> None:
        self._requests.measurements.cancel()
        self._requests.comparing.stop_waiting()
        self._send(commands.Cancel())

    def set_pace(self, pace: Pace) -> None:
        """How fast a run goes, and how often its pictures come."""
        self._requests.pace.choose(pace.command, has_engine=self._models.status.now is not None)

    def _look_from_here(self, direction: int) -> None:
        timeline, step = self._models.timeline, self._models.selection.now.step
        if direction > 0 and timeline.is_elsewhere and step == timeline.tip:
            self._models.status.notify(f"Step {step} is the newest of its branch: go there to step on from it")
        else:
            self._models.selection.update(step=timeline.neighbour(step, direction))
