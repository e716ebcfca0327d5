"""The process client: runs the engine in a child process, for a CPU, where both would share one interpreter lock; or on
another machine, where the child process is ssh.

The child is an ordinary subprocess, never a fork. Messages go through its standard input and output; what it prints is
printed by this process. It ends with its window; if it dies, the window lives on and reports it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

from msgspec.structs import replace

from engine.client import ClientKind
from engine.client.outbox import Outbox
from engine.client.ssh import HELLO_S, check_hello, remote_of
from engine.client.stream import Pieces, echo, echo_time, is_echo, read_frames, write_messages
from engine.errors import InputError
from engine.wire.commands import OpenSnapshot, Shutdown
from engine.wire.encoding import Frame, WireError, decode_event, encode
from engine.wire.events import EngineBack, EngineLine, EngineLost, Event, Failed, Stopped
from engine.wire.exporting import Export, ExportCancelled, Exported
from engine.wire.message import Command

# The child sends a heartbeat every second; after 8 silent seconds it counts as hanging. Silence is counted in pieces of
# at most a second, so that a window that was itself stopped for a while does not blame the engine.
SILENT_S, PIECE_S = 8.0, 1.0
ECHO_S = 2.0  # how often the delay of a line is measured
WORD_OF_EXPORT = Exported | ExportCancelled | Failed
ROOT = Path(__file__).resolve().parents[2]


class ProcessClient:
    """A child process, and three threads: one reads its events, one writes commands, one reads its standard error. With
    an address (`ssh://…`) it is an engine on that machine, which is told what has been read, and asked
    every two seconds how long an answer takes."""

    def __init__(self, address: str = "") -> None:
        self.kind: ClientKind = address or "process"
        self._remote = remote_of(address) if address else None
        self._has_begun = self._remote is None  # what comes before is the other machine's greeting
        self._versions = ""  # of packages on that machine
        self._asked = 0.0  # when the delay of the line was last asked for
        self._events = Outbox()
        self._outgoing: SimpleQueue[list[Frame] | None] = SimpleQueue()
        self._come_here: dict[int, Path] = {}  # where the files of exports belong on this machine, by command
        self._complaints: deque[str] = deque(maxlen=6)
        self._is_closing = self._is_silent = False
        self._cause = ""  # why the engine is gone; empty while it lives
        self._num_heard = self._num_noticed = 0  # messages: read in all, and read when the silence was last checked
        self._looked = time.monotonic()  # when the silence was last checked
        self._silent_s = 0.0
        self._child: subprocess.Popen[bytes] | None = None
        try:
            self._child = _spawn() if self._remote is None else self._remote.spawn()
        except OSError as error:
            what = "The engine" if self._remote is None else "ssh"
            self._report_lost(f"{what} could not be started ({error.strerror or error})")
            return
        self._listening, *others = (
            threading.Thread(target=work, args=(self._child,), name=f"engine{work.__name__}", daemon=True)
            for work in (self._listen, self._read, self._write)
        )
        for thread in (self._listening, *others):
            thread.start()

    @property
    def process_id(self) -> int | None:
        """The process id of the child; None where it could not be started."""
        return self._child.pid if self._child is not None else None

    def send(self, command: Command) -> None:
        if self._cause:
            self._events.put(Failed(f"{self._cause}: restart it.", reply_to=command.id))
            return
        if isinstance(command, Export) and command.comes_here:
            self._come_here[command.id] = command.path
        try:
            if self._remote is not None and isinstance(command, OpenSnapshot) and command.is_here:
                command = self._remote.carried(command)
            self._outgoing.put(encode(command))
        except (InputError, WireError) as error:
            self._events.put(Failed(str(error), reply_to=command.id))

    def drain(self) -> list[Event]:
        self._notice_silence()
        if self._remote is not None and self._has_begun and self._looked - self._asked >= ECHO_S:
            self._asked = self._looked
            self._outgoing.put(echo(self._looked))
        return self._events.take_all()

    def listen(self, callback: Callable[[], None] | None) -> None:
        self._events.listen(callback)

    def close(self, timeout_s: float = 2.0) -> bool:
        self._is_closing = True
        child = self._child
        if child is None:
            return True
        self.send(Shutdown())
        self._outgoing.put(None)
        try:
            child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        return True

    # ---- threads -------------------------------------------------------------------------------------------------

    def _read(self, child: subprocess.Popen[bytes]) -> None:
        """Read and decode events, in a thread of its own."""
        assert child.stdout is not None
        try:
            self._begin(child)
            pieces = Pieces()
            while (frames := read_frames(child.stdout)) is not None:
                self._num_heard += 1
                if is_echo(frames):
                    self._take_echo(frames)
                    continue
                message = pieces.joined(frames)
                event = decode_event(message) if message else None
                if event is not None:
                    self._is_closing = self._is_closing or isinstance(event, Stopped)
                    self._pass_on(event)
                while not (self._events.wait_for_room(PIECE_S) or self._is_closing):
                    pass  # unread messages fill the pipe, and the engine then merges pictures
                if self._remote is not None and frames:
                    self._outgoing.put([])  # it is read
            self._report_lost(self._why_it_ended(child))
        except BaseException as error:  # every error: otherwise the end of this thread would go unnoticed
            if child.poll() is None and not self._is_closing:
                child.kill()
                child.wait()
                words = str(error) if isinstance(error, WireError) else f"{type(error).__name__}: {error}"
                is_of_begin = isinstance(error, WireError) and not self._has_begun
                self._report_lost(
                    words if is_of_begin else f"The engine said what cannot be read ({words}) and was ended"
                )
            else:
                self._report_lost(self._why_it_ended(child))

    def _pass_on(self, event: Event) -> None:
        """Give an event to the window; that a file was written which belongs here once it is here."""
        here = self._come_here.pop(event.reply_to or 0, None) if isinstance(event, WORD_OF_EXPORT) else None
        match event:
            case Exported() if here is not None:
                threading.Thread(target=self._bring, args=(event, here), name="engine_bring", daemon=True).start()
            case ExportCancelled() if here is not None:
                self._events.put(replace(event, path=here))
            case _:
                self._events.put(event)

    def _bring(self, written: Exported, here: Path) -> None:
        """Bring what was written on the other machine to this one, in a thread of its own."""
        assert self._remote is not None
        there = [written.path] if written.script is None else [written.path, written.script]
        try:
            self._remote.bring(there, here.parent)
        except (InputError, OSError) as error:
            self._events.put(
                Failed(
                    f"The export was not brought here and lies on {self._remote.machine} as {written.path} ({error}): "
                    "copy it, or export again.",
                    reply_to=written.reply_to,
                )
            )
            return
        script = None if written.script is None else here.with_name(written.script.name)
        self._events.put(replace(written, path=here, script=script))

    def _begin(self, child: subprocess.Popen[bytes]) -> None:
        """Wait until an engine on another machine has said which it is; one that hangs is ended."""
        if self._remote is None:
            return
        assert child.stdout is not None
        machine, is_late = self._remote.machine, threading.Event()

        def give_up() -> None:
            is_late.set()
            child.kill()

        timer = threading.Timer(HELLO_S, give_up)
        timer.daemon = True
        timer.start()
        try:
            found = check_hello(child.stdout, machine)
        finally:
            timer.cancel()
        if is_late.is_set():
            self._report_lost(f"{machine} did not answer within {HELLO_S:.0f} seconds")
        self._has_begun, self._versions = found is not None, found or ""

    def _take_echo(self, frames: list[bytes]) -> None:
        """Report how long the line took."""
        assert self._remote is not None
        delay_ms = 1000.0 * (time.monotonic() - echo_time(frames))
        self._events.put(EngineLine(self._remote.machine, delay_ms, self._versions))

    def _why_it_ended(self, child: subprocess.Popen[bytes]) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(1.0)
            self._listening.join(PIECE_S)  # the last of what it says
        why = _why_it_ended(child, self._complaints)
        if self._remote is None:
            return why
        code = child.returncode
        return self._remote.why_it_ended(code, self._complaints, has_begun=self._has_begun) or why

    def _write(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdin is not None
        try:
            while (frames := self._outgoing.get()) is not None:
                write_messages(child.stdin, [frames])
            child.stdin.close()
        except OSError:  # the engine has ended, and the reading thread reports why
            return

    def _listen(self, child: subprocess.Popen[bytes]) -> None:
        """Print what the engine prints, and keep the last lines, which may say why it ended. The lines are read even
        where this process cannot print them: a full pipe would block the engine."""
        assert child.stderr is not None
        for line in child.stderr:
            text = line.decode("utf-8", "replace").rstrip()
            with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, gone, or None under pythonw
                sys.stderr.write(f"{text}\n")
            if text:
                self._complaints.append(text)

    # ---- silence and end -----------------------------------------------------------------------------------------

    def _notice_silence(self) -> None:
        """Report an engine that has been silent for `SILENT_S` seconds as hanging, and its first message after that as
        its return."""
        now = time.monotonic()
        waited, self._looked = min(now - self._looked, PIECE_S), now
        if self._num_heard != self._num_noticed or self._cause or self._is_closing or not self._has_begun:
            self._num_noticed, self._silent_s = self._num_heard, 0.0
            if self._is_silent and not self._cause:
                self._is_silent = False
                self._events.put_first(EngineBack())
            return
        self._silent_s += waited
        if self._silent_s >= SILENT_S and not self._is_silent:
            self._is_silent = True
            self._events.put(EngineLost(f"The engine has been silent for {SILENT_S:.0f} seconds", has_ended=False))

    def _report_lost(self, cause: str) -> None:
        """Report once that the engine is gone, unless this client is being closed."""
        if not (self._is_closing or self._cause):
            self._cause = cause
            self._events.put(EngineLost(cause))


def _spawn() -> subprocess.Popen[bytes]:
    """Start the child. It imports modules from where this process does, not from the current folder."""
    environment = dict(os.environ)
    if str(ROOT) not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), environment.get("PYTHONPATH"))))
    if not sys.executable:
        raise OSError("this program does not know its own interpreter")
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "engine.client.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=1 << 16,
        env=environment,
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    )


def _why_it_ended(child: subprocess.Popen[bytes], complaints: deque[str]) -> str:
    """Why the child ended, as one sentence without its full stop; one that does not end is killed."""
    try:
        code = child.wait(1.0)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        return "The engine closed its end without a word and was ended"
    if code < 0:
        name = _signal_name(-code)
        if name == "SIGKILL":
            return "The engine was killed (SIGKILL), as a system does with a program when memory runs out"
        return f"The engine crashed ({name})"
    if code and complaints:
        return f"The engine ended with an error ({complaints[-1][:200]})"
    return f"The engine ended by itself (exit status {code})"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
