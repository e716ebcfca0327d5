"""Which decode kernel is picked, and into how many parts a cache is split."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.max import AttnKey, DecodeShape, DeviceRef, KVCacheParams, num_partitions
from tests.engine.max.parameters import deepseek, llama


@pytest.mark.parametrize(
    ("params", "length", "width", "expected"),
    [
        (llama(), 1000, 1, [1, 256, 512, 768, 1000]),
        (llama(), 256, 1, [1, 256]),
        (llama(), 1, 1, [1, 1]),
        (llama(), 256, 2, [1, 256]),
        (deepseek(), 256, 1, [1, 64, 128, 192, 256]),
        (deepseek(), 256, 2, [1, 64, 128, 192, 256, 63, 127, 191, 255]),
        (llama(num_draft_tokens=3), 1000, 1, [256, 512, 768, 1000]),
        (llama(num_draft_tokens=3), 7, 1, [7]),  # the shortest cache with two rounds of drafts and a token
        (llama(num_draft_tokens=3), 5, 1, []),
    ],
)
def test_graph_capture_probes(params: KVCacheParams, length: int, width: int, expected: list[int]) -> None:
    assert params.graph_capture_probe_cache_lengths(length, width) == expected


def test_on_a_cpu_nothing_is_split() -> None:
    for params in (llama(), deepseek()):
        on_cpu = replace(params, devices=(DeviceRef.CPU(),))
        assert on_cpu.resolve_attn_key(1, 1, 131_072).num_partitions == 1
        assert params.resolve_attn_key(0, 1, 131_072).num_partitions == 1


def test_keys_on_a_gpu_have_the_partitions_of_the_device() -> None:
    assert llama().resolve_attn_key(1, 1, 131_072) == AttnKey(1, 1, 16)
    assert deepseek().resolve_attn_key(8, 1, 65_536) == AttnKey(8, 1, 32)


@pytest.mark.parametrize(
    ("batch", "keys", "heads", "expected"),
    [(1, 512, 8, 1), (1, 513, 8, 1), (1, 4096, 8, 8), (1, 131_072, 8, 16), (1, 131_072, 2, 32), (2, 3000, 8, 8),
     (200, 4096, 8, 1)],
)  # fmt: skip
def test_partitions(batch: int, keys: int, heads: int, expected: int) -> None:
    assert num_partitions(DecodeShape(batch, 1, keys, heads)) == expected


@pytest.mark.parametrize(
    ("batch", "keys", "heads", "expected"), [(1, 1000, 64, 8), (8, 65_536, 128, 32), (64, 1024, 128, 1)]
)
def test_latent_partitions(batch: int, keys: int, heads: int, expected: int) -> None:
    assert num_partitions(DecodeShape(batch, 1, keys, heads, is_mla=True)) == expected


SIZES = (1, 2, 4, 8, 9, 16, 18, 20, 32, 37, 48, 64, 72, 74, 96, 128, 192, 256)
CONTEXTS = (128, 256, 257, 400, 511, 600, 2000, 2176, 2177, 4608, 9000, 66_000, 200_000)


@pytest.mark.parametrize(("is_mla", "expected"), [(False, 3_869_781_080), (True, 770_248_481)])
def test_the_rules_of_a_revision_are_as_they_were(is_mla: bool, expected: int) -> None:
    """A sum of all that the published rule gives for shapes on both sides of its bounds."""
    places = [
        SIZES.index(num_partitions(DecodeShape(batch, width, keys, heads, is_mla, is_fp8)))
        for batch in (*range(1, 13), 15, 16, 18, 19, 20, 24, 32, 37, 38, 60, 63, 64, 76, 100, 106, 128, 148, 256)
        for width in ((1, 2) if is_mla else (1,))
        for heads in (4, 8, 32, 64, 65, 128)
        for is_fp8 in (False, True)
        for keys in CONTEXTS
    ]
    assert zlib.crc32(bytes(places)) == expected


@given(
    st.integers(1, 256), st.integers(1, 8), st.integers(1, 200_000), st.sampled_from([1, 8, 16, 32, 64, 128]),
    st.booleans(), st.booleans(),
)  # fmt: skip
def test_partitions_are_always_a_compiled_size(
    batch: int, width: int, keys: int, heads: int, is_mla: bool, is_fp8: bool
) -> None:
    shape = DecodeShape(batch, width, keys, heads, is_mla, is_fp8)
    sizes = {1, 2, 4, 8, 9, 16, 18, 20, 32, 37, 64, 72, 74}
    assert num_partitions(shape) in sizes
