"""Attention over pages where they lie: the tokens, logits, weights and rows of gathered pages, but for rounding."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from msgspec import structs
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch.nn.attention import flex_attention as torch_flex
from torch.nn.functional import scaled_dot_product_attention

from engine.cache.paged.blocks import PageBlocks
from engine.errors import Cancelled, InputError
from engine.model.runners.compiler import why_not_compiled
from engine.model.runners.pages import Flex, Kernel, PagedAttention, mask_of
from engine.model.runners.runners import Runners
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.edit import Mask, Rows
from engine.spec.presets import PRESETS, cache_named
from engine.spec.runners import RunnerName
from engine.spec.sampling import Prompt
from tests.engine.session.edited import edit_live
from tests.engine.tiny import model_of, prompt_ids

PAGED = [*(name for name, preset in PRESETS.items() if preset.spec.is_paged), "paged+h2o", "paged+tova", "paged+knorm"]


@pytest.fixture(autouse=True)
def _uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own word for computing the scores in the open, operation by operation, which traces nothing."""
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def listed_alone(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, **given: Any) -> torch.Tensor:
    """FlexAttention as a compiled kernel has it: of pages that are not listed it reads nothing. Uncompiled it reads the
    whole pool, and asks of every slot whether it is read."""
    mask, found = given["block_mask"], torch.zeros(keys.shape[2] // given["block_mask"].BLOCK_SIZE[1], dtype=torch.bool)
    for count, pages in ((mask.kv_num_blocks, mask.kv_indices), (mask.full_kv_num_blocks, mask.full_kv_indices)):
        found[pages[torch.arange(pages.shape[-1]) < count[..., None]].long()] = True
    kept = found.repeat_interleave(mask.BLOCK_SIZE[1])[:, None]
    nothing = torch.zeros((), dtype=keys.dtype)
    read: torch.Tensor = torch_flex.flex_attention(
        query, keys.where(kept, nothing), values.where(kept, nothing), **given
    )
    return read


def session_of(
    architecture: str,
    lengths: Sequence[int],
    spec: CacheSpec,
    chosen: str,
    kernel: Kernel | None = None,
    runner: RunnerName = "auto",
) -> Session:
    """A session that has read prompts of these lengths, and is told what comes next."""
    model = model_of(architecture)
    pages = PagedAttention(model.runners.pages.why_not, chosen=chosen)  # type: ignore[arg-type]
    pages.kernel = kernel
    session = Session(replace(model, runners=Runners(model.runners.decoder, runner, pages)), spec)
    for seed, length in enumerate(lengths):
        session.force(session.submit(Prompt(token_ids=prompt_ids(length, seed))), prompt_ids(40, seed + 50))
    while session.is_prefilling:
        session.step()
    return session


def compare(session: Session, gathered: Session) -> str:
    """One step of both: the same tokens, and logits, what is attended to and the rows themselves but for rounding.
    Returns what computed the first."""
    one, other = session.step(), gathered.step()
    assert [part.sampled for part in one.sequences] == [part.sampled for part in other.sequences]
    assert "pages" not in other.runner
    for mine, theirs in zip(one.sequences, other.sequences, strict=True):
        assert mine.attention is not None
        assert theirs.attention is not None
        assert mine.attention.recent_mass == pytest.approx(theirs.attention.recent_mass, abs=2e-5)
        assert mine.attention.first_mass == pytest.approx(theirs.attention.first_mass, abs=2e-5)
    for seq_id in gathered.live.ids:
        logits, others = session.logits(seq_id), gathered.logits(seq_id)
        assert logits is not None
        assert others is not None
        assert torch.allclose(logits, others, atol=2e-5)
        for layer in range(2):
            rows, held = session.cache_of(seq_id).rows(layer), gathered.cache_of(seq_id).rows(layer)
            assert rows is not None
            assert held is not None
            assert torch.allclose(rows.values, held.values, atol=1e-5)
    return one.runner


@pytest.mark.parametrize(
    "architecture", ["llama", "mistral", "gemma3_text", "gemma2", "gemma3n_text", "gpt_oss", "gpt2"]
)
def test_pages_read_one_by_one_are_those_that_were_gathered(architecture: str) -> None:
    """Full attention and windows, soft caps and sinks, layers that read the pages of another one, through the fused
    decoder and through transformers; of one sequence and of three, from before the edge of a page to behind it."""
    spec = CacheSpec("paged", page_size=4)
    sessions = [session_of(architecture, [7, 15, 20], spec, chosen) for chosen in ("pages", "gather")]
    ways = [compare(*sessions) for _ in range(5)]
    assert set(ways) == {"fused+pages" if architecture == "llama" else "transformers+pages"}


@pytest.mark.parametrize(
    ("architecture", "runner"),
    [("llama", "fused"), ("llama", "transformers"), ("llama", "graph"), ("gemma3n_text", "transformers")],
)
def test_one_kernel_for_all_sequences_reads_what_was_gathered(architecture: str, runner: RunnerName) -> None:
    """From before the edge of a page to behind it."""
    spec, kernel = CacheSpec("paged", page_size=16), Flex(listed_alone)
    session, gathered = (
        session_of(architecture, [15, 40], spec, chosen, kernel, runner) for chosen in ("pages", "gather")
    )
    assert [compare(session, gathered) for _ in range(3)] == [f"{runner}+pages"] * 3


@pytest.mark.parametrize("window", [None, 5, 16])
@pytest.mark.parametrize("count", [1, 4, 130])
def test_a_kernel_is_told_of_every_slot_that_is_read_and_of_no_other(count: int, window: int | None) -> None:
    """Lengths one before, at and one behind the edge of a page; a page that two share, one that was dropped."""
    size, num_pages, lengths = 4, 160, [159, 160, 161]
    order = (torch.randperm(num_pages - 1, generator=torch.Generator().manual_seed(0)) + 1).tolist()
    tables = torch.zeros(3, 41, dtype=torch.long)
    for row, length in zip(tables, lengths, strict=True):
        for number in range(-(-length // size)):
            row[number] = order.pop()
    tables[1, 0], tables[2, 3] = tables[0, 0], 0
    places = torch.tensor(lengths)[:, None] + torch.arange(-count, 0)
    mask = mask_of(PageBlocks.of(tables, places, num_pages, size, window), num_pages * size)
    for row, table in enumerate(tables):
        for query, place in enumerate(places[row].tolist()):
            first = 0 if window is None else max(0, place - window + 1)
            held = [p for p in range(first, place + 1) if table[p // size]]
            expected = {int(table[p // size]) * size + p % size for p in held}
            assert read_of(mask, row, query, num_pages * size) == expected


def read_of(mask: Any, row: int, query: int, num_slots: int) -> set[int]:
    """The slots that a query reads: all of pages that are listed whole, of others those that the mask lets through."""
    size, block, found = mask.BLOCK_SIZE[1], query // mask.BLOCK_SIZE[0], set[int]()
    slots = torch.arange(num_slots)
    allowed = mask.mask_mod(torch.tensor(row), torch.tensor(0), torch.tensor(query), slots)
    for is_whole, count, pages in (
        (False, mask.kv_num_blocks, mask.kv_indices),
        (True, mask.full_kv_num_blocks, mask.full_kv_indices),
    ):
        for page in pages[row, 0, block, : count[row, 0, block]].tolist():
            mine = set(range(page * size, (page + 1) * size))
            assert not mine & found, "a page is read once"
            found |= mine if is_whole else {slot for slot in mine if allowed[slot]}
    return found


@pytest.mark.parametrize("cache", PAGED)
def test_every_paged_mode_whose_rows_are_plain_reads_them_in_place(cache: str) -> None:
    """Those that drop pages as well; coded rows have to be decoded first, and are."""
    spec = structs.replace(cache_named(cache), page_size=4)
    if not spec.retention.keeps_all:
        spec = structs.replace(spec, retention=structs.replace(spec.retention, budget=12, ratio=None))
    session, gathered = (session_of("llama", [21], spec, chosen) for chosen in ("pages", "gather"))
    ways = {compare(session, gathered) for _ in range(9)}
    if spec.codec.is_exact:
        assert ways == {"fused+pages"}
        assert not session.model.runners.note
    else:
        assert ways == {"fused"}
        assert "coded rows have to be decoded first" in session.model.runners.note


@pytest.mark.parametrize("kernel", [None, Flex(listed_alone)])
def test_shared_prefixes_and_forks_are_read_where_others_wrote_them(kernel: Kernel | None) -> None:
    spec = CacheSpec("paged", page_size=16)
    session, gathered = (session_of("llama", [37], spec, chosen, kernel) for chosen in ("pages", "gather"))
    for each in (session, gathered):
        each.submit(Prompt(token_ids=(*prompt_ids(32, 0), 5, 6)))
        each.step()
        each.fork(0)
    assert [compare(session, gathered) for _ in range(2)] == ["fused+pages"] * 2
    assert session.cache_of(1).page_counts().hit_tokens == 32


def test_rows_that_are_hidden_by_hand_are_not_read() -> None:
    spec = CacheSpec("paged", page_size=16)
    sessions = [session_of("llama", [37], spec, chosen, Flex(listed_alone)) for chosen in ("pages", "gather")]
    for each in sessions:
        edit_live(each, Mask(0, Rows(3, 20, (1,), (0,))))
    untouched = session_of("llama", [37], spec, "pages", Flex(listed_alone))
    assert compare(*sessions) == "fused+pages"
    untouched.step()
    mine, others = sessions[0].logits(0), untouched.logits(0)
    assert mine is not None
    assert others is not None
    assert (mine - others).abs().max() > 1e-3


@pytest.mark.parametrize(("chosen", "runner"), [("pages", "fused"), ("gather", "fused"), ("gather", "graph")])
def test_what_another_left_in_a_page_is_not_met_by_who_takes_it(chosen: str, runner: RunnerName) -> None:
    """A kernel multiplies what lies behind the last row of a page with a weight of zero: no number stays none, also
    where the page was begun by a step that gathered."""
    spec = CacheSpec("paged", page_size=16, num_pages=8)
    session = session_of("llama", [33], spec, chosen, Flex(listed_alone), runner)
    store = session.live.mode.store
    assert store is not None
    with torch.inference_mode():
        for rows in (rows for pair in store.rows_of.values() for rows in pair):
            assert rows.exact is not None
            rows.exact[:, 4 * 16 :] = torch.nan
    for _ in range(16):
        session.step()
    session.model.runners.pages.choose("pages")
    record = session.step()
    assert record.sequences[0].num_tokens == 50
    assert (record.runner, record.non_finite) == (f"{runner}+pages", ())


def test_a_shape_that_cannot_be_compiled_refuses_that_shape_alone() -> None:
    def short(query: torch.Tensor, *args: Any, **given: Any) -> torch.Tensor:
        if query.shape[2] > 1:
            raise RuntimeError("out of shared memory")
        return listed_alone(query, *args, **given)

    session = session_of("llama", [20], CacheSpec("paged", page_size=16), "pages", Flex(short))
    assert session.model.runners.note.endswith("out of shared memory"), "of the prompt"
    assert session.step().runner == "fused+pages"
    assert not session.model.runners.note


def test_a_kernel_is_made_beside_the_loop_once_for_each_shape() -> None:
    """As the loop has it done: in another thread, under the settings of its own; a cancel leaves nothing behind."""
    made: list[tuple[bool, bool]] = []

    def seen(*args: Any, **given: Any) -> torch.Tensor:
        made.append((threading.current_thread() is threading.main_thread(), torch.is_inference_mode_enabled()))
        return listed_alone(*args, **given)

    def beside(work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    def cancelled(work: Callable[[], None]) -> None:
        raise Cancelled

    spec = CacheSpec("paged", page_size=16)
    session = session_of("llama", [20], spec, "gather", Flex(seen))
    runners, table = session.model.runners, session.cache_of(0).tables[0]
    runners.pages.choose("pages")
    runners.compiling = cancelled
    with pytest.raises(Cancelled):
        session.step()
    assert (made, table.num_tokens, session.sequence(0).num_tokens) == ([], 20, 20)
    runners.compiling = beside
    assert compare(session, session_of("llama", [20], spec, "gather")) == "fused+pages"
    assert made == [(False, True), *[(True, True)] * len(session.model.info.geometry.layers)]


@pytest.mark.parametrize("kind", [RuntimeError, FailOnRecompileLimitHit])
def test_a_kernel_that_cannot_be_made_is_told_once_and_pages_are_gathered(kind: type[Exception]) -> None:
    calls = []

    def broken(*_: Any, **__: Any) -> torch.Tensor:
        calls.append(1)
        raise kind("no Triton here\nand a page of trace")

    session = session_of("llama", [20], CacheSpec("paged", page_size=16), "pages", Flex(broken))
    assert [session.step().runner for _ in range(2)] == ["fused"] * 2
    session.submit(Prompt(token_ids=prompt_ids(40, 7)))
    assert session.step().runner == "fused"
    assert len(calls) == 2, "a third shape is not tried"
    assert session.model.runners.state.note == "pages are gathered before they are read: no Triton here"
    session.model.runners.pages.kernel = Flex(listed_alone)
    session.model.runners.pages.choose("pages")
    assert session.step().runner == "fused+pages"
    assert not session.model.runners.state.note


def test_a_kernel_that_cannot_be_made_of_one_shape_is_made_of_the_others() -> None:
    calls = []

    def of_few_pages(query: torch.Tensor, keys: torch.Tensor, *more: Any, **named: Any) -> torch.Tensor:
        if query.shape[0] > 1:
            calls.append(query.shape[0])
            raise RuntimeError("too many registers")
        return listed_alone(query, keys, *more, **named)

    spec = CacheSpec("paged", page_size=16, num_pages=20)
    session = session_of("llama", [20], spec, "pages", Flex(of_few_pages))
    assert session.step().runner == "fused+pages"
    fork = session.fork(0).child
    assert [session.step().runner for _ in range(3)] == ["fused"] * 3
    assert session.model.runners.state.note == "pages are gathered before they are read: too many registers"
    assert len(calls) == 1, "it is not tried again with every step"
    session.remove(fork)
    assert session.step().runner == "fused+pages"
    assert not session.model.runners.state.note


def test_what_cannot_be_read_in_place_is_refused_with_the_reason() -> None:
    small = session_of("llama", [20], CacheSpec("paged", page_size=8), "pages", Flex(listed_alone))
    assert small.step().runner == "fused"
    assert "the kernel takes pages of 16 tokens or more" in small.model.runners.note
    recorded = session_of("llama", [20], CacheSpec("paged", page_size=16), "pages", None, "graph")
    assert recorded.step().runner == "graph"
    assert "recorded steps read gathered pages where there is no GPU" in recorded.model.runners.note
    pages = model_of("deepseek_v3").runners.pages
    with pytest.raises(InputError, match=r"layers of another kind \(latent\)\. Use auto"):
        pages.choose("pages")
    with pytest.raises(InputError, match="its attention is code of its own"):
        model_of("bloom").runners.pages.choose("pages")
    with pytest.raises(InputError, match="choose one of auto, gather, pages"):
        pages.choose("flat")
    assert pages.chosen == "auto"


def test_a_step_is_repeated_as_it_read_its_pages() -> None:
    session = session_of("llama", [20], CacheSpec("paged", page_size=4), "pages")
    records = [session.step() for _ in range(4)]
    session.model.runners.pages.choose("gather")
    session.go_to(records[0].step)
    assert [session.step().runner for _ in range(2)] == ["fused", "fused"]
    session.go_to(records[3].step)
    with session.model.runners.chosen_as("fused+pages"):
        assert session.model.runners.pages.chosen == "pages"
    assert session.model.runners.pages.chosen == "gather"


@pytest.mark.skipif(bool(why_not_compiled(torch.device("cpu"))), reason="no C++ compiler is installed")
def test_the_kernel_is_compiled_once_for_a_shape_and_reads_no_page_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here as C++ code, on a GPU through Triton: the lists of pages and the mask are the same. Three sequences, the
    second time with other pages and one token more; all that they do not hold is no number."""
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", False)
    generator, size, num_pages = torch.Generator().manual_seed(0), 16, 24
    kernel, graphs = Flex(), torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for lengths in ([33, 48, 7], [34, 49, 8]):
        keys, values = (torch.randn(1, 2, num_pages * size, 16, generator=generator) for _ in range(2))
        query, free = torch.randn(3, 4, 1, 16, generator=generator), torch.randperm(num_pages - 1, generator=generator)
        pages = (free[:12] + 1).view(3, 4)
        held = torch.arange(4) * size < torch.tensor(lengths)[:, None]
        table, others = pages * held, torch.ones(num_pages, dtype=torch.bool)
        others[table] = False
        poisoned = [part.masked_fill(others.repeat_interleave(size)[:, None], torch.nan) for part in (keys, values)]
        with torch.inference_mode():
            blocks = PageBlocks.of(table, torch.tensor(lengths)[:, None] - 1, num_pages, size)
            read = kernel(query, poisoned[0], poisoned[1], blocks, 0.25)
        for row, length in enumerate(lengths):
            slots = (table[row, :, None] * size + torch.arange(size)).flatten()[:length]
            own = scaled_dot_product_attention(
                query[row : row + 1], keys[:, :, slots], values[:, :, slots], scale=0.25, enable_gqa=True
            )
            assert torch.allclose(read[row : row + 1], own, atol=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs + 1
