"""Where K and V live: one row for each layout. This is the only place that describes layouts. No torch."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from engine.spec.codecs import BITS, GROUP, RESIDUAL
from engine.spec.parameter import AUTOMATIC, MOST, TOKENS, Parameter

MAX_PAGE_SIZE = 1024
MAX_HOST_GIB = 65_536

PAGE_SIZES = tuple(1 << power for power in range(MAX_PAGE_SIZE.bit_length()))
MAX_LENGTH = Parameter(
    "max_length",
    "Reserved length",
    "Tokens that a static cache reserves",
    unset=AUTOMATIC,
    unit=TOKENS,
    also="static length, max cache length",
)
PAGE_SIZE = Parameter(
    "page_size",
    "Page size",
    "Tokens per page, a power of two",
    default=16,
    unit=TOKENS,
    most=MAX_PAGE_SIZE,
    also="block size",
)
NUM_PAGES = Parameter(
    "num_pages",
    "Pages in the pool",
    "Pages in the pool, the null page included",
    unset=AUTOMATIC,
    unit="pages",
    also="pool size, number of pages, num blocks",
)
REPLACE_DUPLICATES = Parameter(
    "replace_duplicates",
    "Replace the newer of equal pages",
    "Where two pages come to hold the same tokens: replace the newer one, as MAX does, or keep both, as vLLM does",
    "switch",
    False,
)
HOST_GIB = Parameter(
    "host_gib",
    "Host tier",
    "Size of the host tier of the offloaded cache",
    "size",
    1.0,
    unit="GiB",
    most=MAX_HOST_GIB,
    also="host memory, offload, swap space",
)
POOL = (PAGE_SIZE, NUM_PAGES, REPLACE_DUPLICATES)

_BACKEND = Parameter(
    "backend",
    "Quantiser",
    "Quantiser of transformers' own cache",
    "choice",
    "fp8",
    choices=(("fp8", "fp8"), ("quanto", "quanto"), ("hqq", "hqq")),
)
# None leaves the choice to transformers, whose defaults are 4 bits, groups of 64 and a residual of 128
_QUANTIZER = (
    _BACKEND,
    replace(BITS, tip="Bits of a code", default=None, unset=AUTOMATIC, choices=()),
    replace(GROUP, tip="Numbers that share a scale", default=None, unset=AUTOMATIC),
    replace(RESIDUAL, tip="The latest rows that stay exact", default=None, unset=AUTOMATIC, most=MOST),
)


class LayoutRow(Struct, frozen=True):
    """A layout. `preset` is the name by which people choose it. `takes_no` is the reason why it cannot have a codec or
    a retention rule; it is empty if it can.

    A variant names in `rows_of` the layout whose storage it uses. The offloaded variants keep rows in main memory,
    except those of the layer that comes next; the compiled one runs the decode step of transformers' own forward
    through torch.compile.
    """

    name: str
    preset: str
    label: str
    summary: str
    parameters: tuple[Parameter, ...] = ()
    needs: tuple[str, ...] = ()
    takes_no: str = ""
    is_paged: bool = False
    recomputes: bool = False
    rows_of: str = ""
    is_compiled: bool = False

    @property
    def needs_cuda(self) -> bool:
        """Whether the layout works only with a CUDA GPU, because it copies between GPU and main memory."""
        return bool(self.rows_of) and not self.is_compiled

    @property
    def is_opt_in(self) -> bool:
        """Whether runs over all modes leave the layout out: it works on some devices only, or takes minutes to
        begin."""
        return self.needs_cuda or self.is_compiled


CUDA_GPU = "a CUDA GPU"
COMPILER = "a compiler: Triton on a GPU, C++ on a CPU"
_NOTHING_KEPT, _AS_IT_IS = "it keeps nothing between steps", "it is transformers' cache as it is"

LAYOUTS: Mapping[str, LayoutRow] = {
    row.name: row
    for row in (
        LayoutRow(
            "none",
            "none",
            "None",
            "No cache: every step recomputes K and V of every token.",
            takes_no=_NOTHING_KEPT,
            recomputes=True,
        ),
        LayoutRow(
            "dynamic", "dynamic", "Dynamic", "transformers' DynamicCache, grown by concatenation.", takes_no=_AS_IT_IS
        ),
        LayoutRow(
            "static",
            "static",
            "Static",
            "transformers' StaticCache: all room reserved before the first token.",
            (MAX_LENGTH,),
            takes_no=_AS_IT_IS,
        ),
        LayoutRow(
            "offloaded",
            "transformers-offloaded",
            "Offloaded (transformers)",
            "transformers' DynamicCache with offloading: rows rest in main memory until their layer is next.",
            needs=(CUDA_GPU,),
            takes_no=_AS_IT_IS,
            rows_of="dynamic",
        ),
        LayoutRow(
            "offloaded-static",
            "transformers-offloaded-static",
            "Offloaded static (transformers)",
            "transformers' StaticCache with offloading: all room is reserved, and rests in main memory.",
            (MAX_LENGTH,),
            needs=(CUDA_GPU,),
            takes_no=_AS_IT_IS,
            rows_of="static",
        ),
        LayoutRow(
            "static-compiled",
            "transformers-static-compiled",
            "Static, compiled",
            "transformers' StaticCache, and its decode step through torch.compile, which takes minutes to begin.",
            (MAX_LENGTH,),
            needs=(COMPILER,),
            takes_no=_AS_IT_IS,
            rows_of="static",
            is_compiled=True,
        ),
        LayoutRow("growing", "growing", "Growing", "Preallocated room that doubles: a new row costs O(1)."),
        LayoutRow(
            "paged",
            "paged",
            "Paged",
            "A pool of pages and page tables: shared prefixes, copy-on-write, preemption.",
            POOL,
            is_paged=True,
        ),
        LayoutRow(
            "host",
            "offloaded",
            "Offloaded",
            "Paged, with a second-level prefix cache in host memory.",
            (*POOL, HOST_GIB),
            takes_no="its pages travel to the host and back as they are",
            is_paged=True,
        ),
        LayoutRow(
            "allocated",
            "allocated",
            "Allocated but unused",
            "A cache is reserved and never read: every step recomputes, as MAX's GPT-2 does.",
            takes_no=_NOTHING_KEPT,
            recomputes=True,
        ),
        LayoutRow(
            "quantized",
            "transformers-quantized",
            "Quantized (transformers)",
            "transformers' QuantizedCache as it is: fp8, or quanto and hqq where they are installed.",
            _QUANTIZER,
            ("full attention in every layer",),
            takes_no="it has a quantiser of its own",
        ),
    )
}
BACKENDS = tuple(map(str, _BACKEND.values))
