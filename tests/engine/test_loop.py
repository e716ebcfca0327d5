"""The engine's thread as the window uses it: real thread, real models, commands in, events out."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from msgspec import structs
from safetensors import safe_open

from engine.client.thread import ThreadClient
from engine.errors import InputError
from engine.loop import is_out_of_memory, plain
from engine.model.runners.decoder import Block
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.model import ModelSpec
from engine.spec.presets import cache_preset
from engine.spec.sampling import Prompt, SamplingParams
from engine.wire.commands import (
    Cancel,
    CheckParity,
    Command,
    Export,
    FindModels,
    Force,
    Fork,
    LoadModel,
    Pause,
    RemoveSequence,
    Rewind,
    RowRequest,
    Run,
    SetCache,
    SetPace,
    SetSampling,
    Step,
    SubmitPrompt,
    TakeSlice,
    Tokenize,
    WallRequest,
)
from engine.wire.events import (
    CacheChanged,
    EngineStatus,
    Event,
    Exported,
    Failed,
    Forked,
    ModelsFound,
    Restarted,
    Rewound,
    StateChanged,
    Stopped,
    Submitted,
    Tokenized,
)
from engine.wire.measurements import ParityReport
from engine.wire.records import StepRecord
from engine.wire.slices import RowSlice, WallSlice
from tests.engine.tiny import config_dict, prompt_ids, write_config

T = TypeVar("T")
PATIENCE_S = 60.0
GROWING = CacheSpec("growing")


class Driver:
    """Sends commands and waits for what they bring."""

    def __init__(self, source: str, cache: CacheSpec = GROWING) -> None:
        self.loop = ThreadClient()
        self.events: list[Event] = []
        self.loop.send(LoadModel(ModelSpec(source, device="cpu", num_threads=1), cache))

    def send(self, *commands: Command) -> None:
        for command in commands:
            self.loop.send(command)

    def wait(self, found: Callable[[], T | None]) -> T:
        """The first thing `found` finds, looking again after every batch of events."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            self.events += self.loop.drain()
            result = found()
            if result:
                return result
            time.sleep(0.002)
        raise AssertionError(f"waited in vain; the last events were {self.events[-5:]}")

    def of(self, kind: type[T]) -> list[T]:
        return [e for e in self.events if isinstance(e, kind)]

    def wait_for(self, kind: type[T], count: int = 1) -> T:
        return self.wait(lambda: self.of(kind)[-1:] if len(self.of(kind)) >= count else None)[0]

    def forget(self) -> None:
        """Drop what was said so far, but how things stand."""
        self.events += self.loop.drain()
        self.events[:] = self.of(StateChanged)[-1:]

    @property
    def session(self) -> Session:
        """That of the engine's thread, to be looked at while it rests."""
        session = self.loop._loop._session
        assert session is not None
        return session

    @property
    def status(self) -> EngineStatus:
        return self.of(StateChanged)[-1].status

    def rest(self) -> EngineStatus:
        """The status once everything sent so far is done and nothing runs."""
        number = random.randrange(10**9)
        self.send(Tokenize("", id=number))

        def done() -> EngineStatus | None:
            answered = any(t.reply_to == number for t in self.of(Tokenized))
            return self.status if answered and not self.status.running else None

        return self.wait(done)

    def loaded(self) -> Driver:
        self.wait(lambda: self.of(Restarted))
        self.rest()
        self.forget()
        return self


def shape_of(folder: Path, **changes: Any) -> str:
    import json

    (folder / "config.json").write_text(json.dumps({**config_dict("llama"), **changes}))
    return f"shape:{folder / 'config.json'}"


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    driver = Driver(f"shape:{write_config('llama', tmp_path)}")
    yield driver.loaded()
    assert driver.loop.close(10.0)


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Driver]:
    """A model whose chunk takes long enough to be caught in the middle of a prefill."""
    driver = Driver(shape_of(tmp_path, max_position_embeddings=8192, num_hidden_layers=8, hidden_size=256))
    yield driver.loaded()
    assert driver.loop.close(10.0)


def prompt(length: int, **sampling: Any) -> SubmitPrompt:
    return SubmitPrompt(Prompt(token_ids=prompt_ids(length), sampling=SamplingParams(**sampling)))


def test_it_loads_prefills_and_steps(driver: Driver) -> None:
    driver.send(prompt(6), Step())
    record = driver.wait_for(StepRecord)
    assert record.phase == "prefill"
    assert not driver.rest().running, "one unit was asked for"
    assert len(driver.of(StepRecord)) == 1
    driver.send(Step(3))
    driver.wait_for(StepRecord, 4)
    assert driver.rest().step == 3
    assert [r.step for r in driver.of(StepRecord)] == [0, 1, 2, 3]


def test_a_cancel_that_ended_a_measurement_is_used_up(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was going on goes on behind it."""

    def endless(*args: object) -> Iterator[tuple[int, int]]:
        for done in range(1 << 30):
            if done == 3:
                driver.loop.send(Cancel())
            yield done, 1 << 30

    monkeypatch.setattr("engine.analysis.parity.live_parity", endless)
    driver.send(prompt(6), Run(40), CheckParity(0))
    driver.wait(lambda: [r for r in driver.of(StepRecord) if r.step == 39])
    driver.rest()
    assert len(driver.of(StepRecord)) == 40
    assert not driver.of(ParityReport)
    assert not driver.of(Failed)


def test_a_cancel_takes_back_what_was_to_run_before_it(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run and a step that were asked for during a measurement, before its cancel; the step after it is done."""

    def endless(*args: object) -> Iterator[tuple[int, int]]:
        for done in range(1 << 30):
            if done == 3:
                driver.send(Run(30), Step(5), Cancel(), Step(2))
            yield done, 1 << 30

    monkeypatch.setattr("engine.analysis.parity.live_parity", endless)
    driver.send(prompt(6), Step(), CheckParity(0))
    driver.wait_for(StepRecord, 3)
    driver.rest()
    assert [r.step for r in driver.of(StepRecord)] == [0, 1, 2]


def test_a_paced_run_leaves_its_pace_to_nobody(driver: Driver) -> None:
    """A new prompt asks for three steps: they come at once, not one in ten thousand seconds."""
    driver.send(SetPace(1e-4, None), prompt(6), Run())
    driver.wait_for(StepRecord)
    driver.send(structs.replace(prompt(7), num_steps=3))
    driver.wait_for(StepRecord, 4)
    assert not driver.rest().running


def test_a_prompt_that_asks_for_no_step_ends_an_endless_run(driver: Driver) -> None:
    driver.send(SetPace(1e-4, None), prompt(6), Run())
    driver.wait_for(StepRecord)
    driver.send(prompt(7))
    driver.wait_for(Submitted, 2)
    assert not driver.rest().running


def test_a_loop_says_that_it_gets_on_and_that_it_is_idle(slow: Driver) -> None:
    loop = slow.loop._loop
    slow.wait(lambda: loop.is_idle)
    before = loop.progress
    slow.send(prompt(300), Step())
    slow.wait_for(StepRecord)
    slow.rest()
    assert loop.progress > before + len(slow.of(StepRecord)) + 2
    slow.wait(lambda: loop.is_idle)


def test_quick_keys_are_not_lost(driver: Driver) -> None:
    """Three steps asked for before the first is done are three steps."""
    driver.send(prompt(6), Step(), Step(), Step())
    driver.wait_for(StepRecord, 3)
    driver.rest()
    assert len(driver.of(StepRecord)) == 3


def test_a_long_prefill_is_one_unit_of_many_chunks(slow: Driver) -> None:
    slow.send(prompt(400), Step())
    slow.wait(lambda: [r for r in slow.of(StepRecord) if r.sequences[0].num_tokens == 400])
    assert not slow.rest().running
    parts = [r.sequences[0] for r in slow.of(StepRecord)]
    assert len(parts) > 1
    assert [part.first_position for part in parts[1:]] == [part.num_tokens for part in parts[:-1]]
    assert [part.sampled is not None for part in parts] == [False] * (len(parts) - 1) + [True]


def test_cancel_ends_a_prefill_within_a_chunk_and_a_step_takes_it_up_again(slow: Driver) -> None:
    slow.send(prompt(8000), Run())
    slow.wait_for(StepRecord, 2)
    slow.send(Cancel())
    status = slow.rest()
    done = len(slow.of(StepRecord))
    assert not status.running
    assert status.sequences[0].state == "prefill"
    assert done < 20
    assert not slow.of(Failed)
    time.sleep(0.1)
    slow.rest()
    assert len(slow.of(StepRecord)) == done, "it really rests"
    slow.send(Run())
    slow.wait_for(StepRecord, done + 1)
    slow.send(Pause())
    slow.rest()
    records = slow.of(StepRecord)
    assert records[done].sequences[0].first_position == records[done - 1].sequences[0].num_tokens


@pytest.mark.parametrize("command", [Cancel(), RemoveSequence(1)], ids=["cancel", "another sequence is removed"])
def test_a_cancel_in_mid_chunk_leaves_the_session_where_it_was_before_the_chunk(
    slow: Driver, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    """The third layer of the second chunk is where it comes; what was there is there, and the rest follows on it."""
    original, layers = Block.__call__, [0]
    states: list[tuple[Any, ...]] = []

    def state(cache: Any) -> tuple[Any, ...]:
        held = [(rows.keys.clone(), rows.values.clone()) for i in range(8) if (rows := cache.rows(i)) is not None]
        return cache.num_tokens, held

    def call(self: Block, *args: Any) -> Any:
        layers[0] += 1
        if layers[0] == 8 + 1:
            states.append(state(live.cache))
        if layers[0] == 8 + 3:
            slow.loop.send(command)
        return original(self, *args)

    slow.send(prompt(600), structs.replace(prompt(20), alone=False))
    slow.rest()
    session = slow.session
    live = session.live.get(0)
    monkeypatch.setattr("engine.session.chunks.PrefillChunk.took", lambda *args: None)  # 256 tokens each
    monkeypatch.setattr(Block, "__call__", call)
    slow.send(Step())
    if isinstance(command, Cancel):
        status = slow.rest()
        assert [r.sequences[0].num_tokens for r in slow.of(StepRecord)] == [256]
        assert layers[0] == 8 + 3, "no layer more"
        assert (status.step, status.sequences[0].num_tokens, status.sequences[0].state) == (0, 256, "prefill")
        (count, held), (now, rows) = states[0], state(live.cache)
        assert count == now == 256
        assert all(
            torch.equal(a, b) for old, new in zip(held, rows, strict=True) for a, b in zip(old, new, strict=True)
        )
        slow.send(Step())
    slow.wait(lambda: [r for r in slow.of(StepRecord) if r.sequences[0].num_tokens == 600])
    assert layers[0] == 3 * 8 + 3, "the chunk was begun anew"
    assert [r.sequences[0].num_tokens for r in slow.of(StepRecord)] == [256, 512, 600]
    assert len(slow.rest().sequences) == (2 if isinstance(command, Cancel) else 1)
    assert not slow.of(Failed)
    twin = Session(session.model, GROWING, prefill_chunk=256)
    twin.submit(Prompt(token_ids=prompt_ids(600)))
    for _ in range(3):
        twin.step()
    mine, its = session.logits(0), twin.logits(0)
    assert mine is not None
    assert its is not None
    assert torch.equal(mine, its)


def test_running_to_a_number_of_steps_and_pausing(driver: Driver) -> None:
    driver.send(prompt(6, temperature=2.0, seed=1), Run(5))
    driver.wait_for(StepRecord, 5)
    assert driver.rest().step == 4
    driver.send(Run())
    driver.wait_for(StepRecord, 8)
    driver.send(Pause())
    driver.rest()
    count = len(driver.of(StepRecord))
    driver.rest()
    assert len(driver.of(StepRecord)) == count


def test_nothing_to_do_is_said_and_does_not_wait_in_ambush(driver: Driver) -> None:
    for command in (Step(), Run(), Step(0), Step(-1)):
        driver.forget()
        driver.send(command)
        assert driver.wait_for(Failed).message
    driver.forget()
    driver.send(prompt(6))
    driver.rest()
    assert driver.of(StepRecord) == [], "a step refused before must not run now"


def test_the_newest_slice_wins(driver: Driver) -> None:
    driver.send(prompt(6), Step())
    driver.wait_for(StepRecord)
    driver.rest()
    driver.forget()
    gate = threading.Event()
    original = Session.encode

    def wait_then_encode(self: Session, prompt: Prompt) -> list[int]:
        gate.wait(PATIENCE_S)
        return original(self, prompt)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "encode", wait_then_encode)
        driver.send(Force(0, (5,)))  # holds the thread while the requests pile up
        for number in range(50):
            driver.send(TakeSlice(WallRequest(0, 6, 6, "keys", False, 8, 8), id=number))
        driver.send(TakeSlice(RowRequest(0, 6, 2), id=99))
        gate.set()
        driver.wait_for(RowSlice)
        driver.rest()
    assert [w.reply_to for w in driver.of(WallSlice)] == [49]
    assert [r.reply_to for r in driver.of(RowSlice)] == [99]


@pytest.mark.parametrize(
    "command",
    [
        SubmitPrompt(Prompt(token_ids=(9999,))),
        SubmitPrompt(Prompt(token_ids=(3,) * 1000)),
        SubmitPrompt(Prompt(text="no tokenizer")),
        Force(7, (3,)),
        Force(0, (-1,)),
        Rewind(77),
        RemoveSequence(7),
        SetCache(CacheSpec("static", max_length=2)),
        TakeSlice(WallRequest(7, 6, 6, "keys", False, 8, 8)),
        Export(Path("/no/such/folder/x.safetensors"), 0),
        Export(Path("x.safetensors"), 7),
        Export(Path("x.safetensors"), 0, 999),
        LoadModel(ModelSpec("/no/such/model"), GROWING),
        LoadModel(ModelSpec("someone/not-here"), GROWING),
    ],
    ids=lambda c: f"{type(c).__name__} {str(c)[-60:]}",
)
def test_what_cannot_be_done_becomes_one_failed_and_the_session_lives_on(driver: Driver, command: Command) -> None:
    driver.send(prompt(6), Step())
    driver.wait_for(StepRecord)
    before = driver.rest()
    driver.forget()
    driver.send(structs.replace(command, id=41))
    failed = driver.wait_for(Failed)
    after = driver.rest()
    assert failed.reply_to == 41
    assert "\n" not in failed.message
    assert len(driver.of(Failed)) == 1
    assert not driver.of(Restarted)
    assert (after.model, after.cache, after.sequences, after.step) == (
        before.model,
        before.cache,
        before.sequences,
        before.step,
    )
    driver.send(Step())
    assert driver.wait_for(StepRecord).step == 1


def test_an_unexpected_error_in_a_step_is_told_once_and_stops_the_run(driver: Driver) -> None:
    driver.send(prompt(6), Step())
    driver.wait_for(StepRecord)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.session.stepper.choose", lambda *args: 1 / 0)
        driver.send(Run())
        failed = driver.wait_for(Failed)
        assert "ZeroDivisionError" in failed.message
        driver.rest()
        assert len(driver.of(Failed)) == 1
    driver.send(Step())
    driver.wait_for(StepRecord, 2)


def test_a_bad_model_keeps_the_old_and_a_good_one_replaces_it(driver: Driver, tmp_path: Path) -> None:
    driver.send(prompt(6), Step())
    driver.wait_for(StepRecord)
    name = driver.rest().model
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{")
    driver.send(LoadModel(ModelSpec(str(broken), num_threads=1), GROWING))
    assert "not valid JSON" in driver.wait_for(Failed).message
    assert driver.rest().model == name
    other = tmp_path / "other"
    other.mkdir()
    driver.send(LoadModel(ModelSpec(f"shape:{write_config('gpt2', other)}", num_threads=1), CacheSpec("dynamic")))
    driver.wait_for(Restarted)
    status = driver.rest()
    assert status.model is not None
    assert status.model.architecture == "GPT2LMHeadModel"
    assert status.cache == CacheSpec("dynamic")
    assert status.sequences == ()


def test_the_first_load_may_fail_and_another_follow(tmp_path: Path) -> None:
    driver = Driver("/no/such/model")
    assert "check the path" in driver.wait_for(Failed).message
    driver.send(Step())
    assert "no model yet" in driver.wait_for(Failed, 2).message
    driver.send(LoadModel(ModelSpec(f"shape:{write_config('llama', tmp_path)}", num_threads=1), GROWING))
    driver.wait_for(Restarted)
    assert driver.loop.close(10.0)


def test_rewind_cache_sampling_and_a_second_prompt(driver: Driver) -> None:
    driver.send(prompt(6, temperature=1.0, seed=4), Step(4))
    driver.wait_for(StepRecord, 4)
    driver.send(Rewind(1))
    assert driver.wait_for(Rewound).step == 1
    assert driver.rest().step == 1
    driver.send(SetCache(CacheSpec("paged")))
    assert "converted" in driver.wait_for(CacheChanged).how
    driver.send(SetSampling(SamplingParams(temperature=3.0)))
    assert driver.rest().sampling.temperature == 3.0
    driver.send(SubmitPrompt(Prompt(token_ids=prompt_ids(4)), alone=False))
    assert len(driver.rest().sequences) == 2
    driver.send(prompt(5))
    driver.wait_for(Restarted)
    assert [s.num_prompt_tokens for s in driver.rest().sequences] == [5]
    assert driver.status.step is None


def test_the_cache_in_use_is_not_filled_again(driver: Driver) -> None:
    tova = cache_preset("tova").spec
    driver.send(prompt(40), Step(2), SetCache(tova))
    assert driver.wait_for(CacheChanged).cache == tova
    driver.send(SetCache(tova), SetCache(GROWING))
    assert driver.wait_for(CacheChanged, 2).cache == GROWING
    assert driver.of(Failed) == []


def test_export_is_whole_and_told(driver: Driver, tmp_path: Path) -> None:
    path = tmp_path / "cache.safetensors"
    driver.send(prompt(6), Step())
    driver.wait_for(StepRecord)
    driver.send(Export(path, 0))
    exported = driver.wait_for(Exported)
    assert exported.num_bytes == path.stat().st_size
    with safe_open(path, "pt") as opened:
        assert opened.metadata()["format"] == "kvloupe-snapshot"


def test_models_on_this_computer_are_listed_without_a_model(driver: Driver) -> None:
    driver.send(FindModels())
    assert isinstance(driver.wait_for(ModelsFound).models, tuple)


def test_status_says_what_takes_a_while(tmp_path: Path) -> None:
    driver = Driver(f"shape:{write_config('llama', tmp_path)}")
    driver.wait(lambda: driver.of(Restarted))
    driver.rest()
    labels = [e.status.work.label for e in driver.of(StateChanged) if e.status.work]
    assert labels[0].startswith("Starting torch")
    assert driver.status.work is None
    assert driver.loop.close(10.0)


@pytest.mark.parametrize("seed", range(12))
def test_it_ends_at_any_moment(tmp_path: Path, seed: int) -> None:
    """During load, prefill, decode, slices and export: the thread is gone within two seconds, and says so."""
    chance = random.Random(seed)
    driver = Driver(shape_of(tmp_path, max_position_embeddings=8192, num_hidden_layers=4))
    driver.send(prompt(4000), Run(), SetCache(CacheSpec("paged")))
    for _ in range(20):
        driver.send(TakeSlice(WallRequest(0, 100, 100, "keys", False, 64, 16)))
    driver.send(Export(tmp_path / "x.safetensors", 0))
    time.sleep(chance.random() * 0.4)
    assert driver.loop.close(2.0)
    driver.events += driver.loop.drain()
    assert isinstance(driver.events[-1], Stopped)
    assert not [p for p in tmp_path.iterdir() if p.name.endswith(".part")]


def test_it_may_end_before_it_was_asked_anything() -> None:
    assert ThreadClient().close(0.5)


def test_a_process_that_simply_ends_is_not_held_up(tmp_path: Path) -> None:
    """No shutdown at all: the thread is a daemon, and the interpreter ends with status 0."""
    source = f"shape:{write_config('llama', tmp_path)}"
    script = (
        "import time\n"
        "from engine.client.thread import ThreadClient\n"
        "from engine.spec.cache import CacheSpec\n"
        "from engine.spec.model import ModelSpec\n"
        "from engine.wire.commands import LoadModel\n"
        "loop = ThreadClient()\n"
        f"loop.send(LoadModel(ModelSpec({source!r}, num_threads=1), CacheSpec('growing')))\n"
        "time.sleep(0.3)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], timeout=60, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_torch_before_a_model_is_asked_for() -> None:
    script = (
        "import sys\n"
        "from engine.client.thread import ThreadClient\n"
        "ThreadClient()\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True)


def test_two_quick_prompts_are_both_read_and_nothing_more(driver: Driver) -> None:
    driver.send(prompt(6), Step())
    driver.wait_for(StepRecord)
    driver.rest()
    driver.forget()
    for seed in (1, 2):
        ids = Prompt(token_ids=prompt_ids(5, seed))
        driver.send(SubmitPrompt(ids, alone=False, num_steps=1))
    driver.wait_for(StepRecord, 2)
    status = driver.rest()
    assert [(r.phase, r.sequences[0].seq_id) for r in driver.of(StepRecord)] == [("prefill", 1), ("prefill", 2)]
    assert [info.num_tokens for info in status.sequences] == [6, 5, 5]
    assert [(s.seq_id, len(s.token_ids)) for s in driver.of(Submitted)] == [(1, 5), (2, 5)]


def test_a_refused_prompt_asks_for_no_step(driver: Driver) -> None:
    driver.send(prompt(6), Step())
    driver.wait_for(StepRecord)
    driver.forget()
    driver.send(SubmitPrompt(Prompt(token_ids=(9999,)), alone=False, num_steps=1))
    driver.wait_for(Failed)
    driver.rest()
    assert driver.of(StepRecord) == []


def test_a_fork_of_a_past_step_is_told_with_its_parent(driver: Driver) -> None:
    driver.send(prompt(6), Step(4))
    driver.wait_for(StepRecord, 4)
    driver.send(Fork(0, 1))
    forked = driver.wait_for(Forked)
    assert (forked.parent, forked.child, forked.step, forked.num_tokens) == (0, 1, 1, 7)
    place = driver.events.index(forked)
    told = [event.status for event in driver.events[:place] if isinstance(event, StateChanged)]
    assert [info.num_tokens for info in told[-1].sequences] == [9, 7], "the status that has it comes first"


def test_sampling_is_told_of_each_sequence_and_of_the_next_prompt(driver: Driver) -> None:
    driver.send(prompt(6, temperature=1.0, seed=4), Step())
    driver.wait_for(StepRecord)
    warm = SamplingParams(temperature=2.0)
    driver.send(SetSampling(warm), SubmitPrompt(Prompt(token_ids=(5, 6)), alone=False))
    driver.send(SetSampling(SamplingParams(seed=9), 1))
    status = driver.rest()
    assert [info.sampling for info in status.sequences] == [
        SamplingParams(temperature=1.0, seed=4),
        SamplingParams(seed=9),
    ]
    assert status.sampling == warm


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError("no room"), "not enough memory"),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate"),
            "not enough",
        ),
        (RuntimeError("the allocation of heads is odd"), "Something unexpected went wrong (RuntimeError"),
        (ValueError("out of memory is what this is not"), "Something unexpected went wrong (ValueError"),
        (InputError("The pool is full: remove a sequence."), "The pool is full: remove a sequence."),
    ],
    ids=lambda case: str(case)[:20],
)
def test_a_step_says_what_went_wrong_by_what_was_raised(driver: Driver, error: Exception, words: str) -> None:
    driver.send(prompt(6), Step())
    driver.wait_for(StepRecord)

    def fail(*args: object) -> None:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.session.stepper.choose", fail)
        driver.send(Step())
        message = driver.wait_for(Failed).message
        driver.rest()
    assert message.startswith(words) or words in message
    assert isinstance(error, InputError) == (message == str(error))


def test_where_torch_cannot_be_imported_the_error_is_still_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert plain(ImportError("no torch here")).startswith(
        "Something unexpected went wrong (ImportError: no torch here)"
    )
    assert is_out_of_memory(MemoryError())


def test_torchs_own_refusals_of_memory_are_known_for_what_they_are() -> None:
    import torch

    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 46)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    with pytest.raises(RuntimeError) as caught:
        torch.zeros(2).view(3)
    assert not is_out_of_memory(caught.value)
