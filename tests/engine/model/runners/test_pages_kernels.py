"""Kernels that read pages in place: made once for a shape, in another thread; what cannot be made or read is said."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch.nn.attention import flex_attention as torch_flex
from torch.nn.functional import scaled_dot_product_attention

from engine.cache.paged.rows import PageBlocks
from engine.errors import Cancelled, InputError
from engine.model.runners.compiler import why_not_compiled
from engine.model.runners.pages import Flex
from engine.spec.cache import CacheSpec
from engine.spec.sampling import Prompt
from tests.engine.model.runners.paged_reading import compare, listed_alone, session_of
from tests.engine.tiny import model_of, prompt_ids

pytestmark = pytest.mark.usefixtures("eager_flex")


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
@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="FlexAttention's C++ code needs vector units"
)
def test_the_kernel_is_compiled_once_for_a_shape_and_reads_no_page_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here as C++ code, on a GPU through Triton: the lists of pages and the mask are the same. Three sequences, the
    second time with other pages and one token more; all that they do not hold is no number."""
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", False)
    generator, size, num_pages = torch.Generator().manual_seed(0), 16, 24
    counted = torch._dynamo.utils.counters["stats"]  # torch counts what it compiles nowhere else
    kernel, graphs = Flex(), counted["unique_graphs"]
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
    assert counted["unique_graphs"] == graphs + 1
