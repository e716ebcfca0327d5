"""What a server's `/metrics` page says about its prefix cache: vLLM's and SGLang's names."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from engine.errors import InputError
from engine.serving.server import Server

MAX_BYTES, TIMEOUT_S, WHOLE_S = 4 << 20, 3.0, 10.0
# Of a figure the names that servers give it; over several ranks figures are summed, but for `usage` the mean.
NAMES = {
    "queries": ("vllm:prefix_cache_queries_total", "sglang:prompt_tokens_total"),
    "hits": ("vllm:prefix_cache_hits_total", "sglang:cached_tokens_total"),
    "usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage"),
    "preemptions": ("vllm:num_preemptions_total", "sglang:num_retracted_reqs"),
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs"),
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs"),
}
_CONFIG = "vllm:cache_config_info"


class Metrics(msgspec.Struct, frozen=True):
    """`queries` and `hits` are tokens of prompts; `usage` is 0 to 1. None is what the page does not say."""

    queries: float | None = None
    hits: float | None = None
    usage: float | None = None
    preemptions: float | None = None
    waiting: float | None = None
    running: float | None = None
    num_blocks: int | None = None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any) -> None:
        """Only the address that the user named is connected to."""


def check_url(url: str) -> str:
    """Raises InputError for what is no address of a page."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_good = False
    if not is_good or any(c.isspace() or not c.isprintable() for c in url):
        raise InputError(f"'{url[:100]}' is no address of a metrics page: give one like http://HOST:8000/metrics.")
    return url


def fetch(url: str) -> Metrics:
    """Reads the page; raises InputError, with cause and remedy, where that cannot be."""
    check_url(url)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())
    try:
        with opener.open(url, timeout=TIMEOUT_S) as answer:
            page, until = b"", time.monotonic() + WHOLE_S
            while len(page) <= MAX_BYTES and (piece := answer.read1(1 << 16)):
                page += piece
                if time.monotonic() > until:
                    raise TimeoutError("it took too long")
    except urllib.error.HTTPError as error:
        raise InputError(f"{url} answers with status {error.code}: check the address of the metrics page.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        reason = getattr(reason, "strerror", None) or reason
        raise InputError(f"{url} cannot be read ({reason}): check the address, and that the server runs.") from None
    except Exception as error:  # http.client has its own for what is no HTTP
        raise InputError(f"{url} is no web page ({type(error).__name__}): check the port.") from None
    if len(page) > MAX_BYTES:
        raise InputError(f"{url} is larger than {MAX_BYTES >> 20} MiB, which no metrics page is: check the address.")
    return parse(page, url)


def parse(page: bytes, url: str = "the page") -> Metrics:
    """The figures on a page in Prometheus' format; raises InputError for another one."""
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError:
        raise InputError("To read metrics install the extra: pip install 'kvloupe[serving]'.") from None
    wanted = {name: figure for figure, names in NAMES.items() for name in names}
    found = defaultdict[str, list[float]](list)
    num_blocks = None
    is_any = False
    try:
        for family in text_string_to_metric_families(page.decode("utf-8")):
            is_any = True
            for sample in family.samples:
                figure = wanted.get(sample.name)
                if figure is not None and 0 <= sample.value < float("inf"):
                    found[figure].append(sample.value)
                elif sample.name == _CONFIG:
                    num_blocks = _whole(sample.labels.get("num_gpu_blocks"))
    except (ValueError, KeyError, IndexError, TypeError):
        is_any = False
    if not is_any:
        raise InputError(f"{url} is no metrics page: check the address, like http://HOST:8000/metrics.")
    figures = {name: sum(values) / (len(values) if name == "usage" else 1) for name, values in found.items()}
    return Metrics(**figures, num_blocks=num_blocks)


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def usable_blocks(figures: Metrics) -> int:
    """How many blocks of each rank can hold a prefix: one is kept for padding. 0 where the page does not say it."""
    return max(0, (figures.num_blocks or 0) - 1)


def beside_events(
    server: Server, first: Metrics, now: Metrics, pools: Sequence[tuple[int, float]]
) -> tuple[tuple[str, str], ...]:
    """A server's own figures `now`, and since the `first` ones, in words; beside them what its events say. `pools` are
    hit ratios by number of blocks, as estimated from them."""
    usable = usable_blocks(now)
    found: list[tuple[str, str]] = []
    if now.queries is not None and now.hits is not None:
        found.append(("prompt tokens found in the cache, in all", _ratio(now.hits, now.queries)))
        if first.queries is not None and first.hits is not None and now.queries > first.queries:
            found.append(("and since attached", _ratio(now.hits - first.hits, now.queries - first.queries)))
    if estimated := [ratio for size, ratio in pools if size <= usable]:  # the last is for all that was stored
        found.append(("by its events, in a pool as large (estimate)", f"{100 * estimated[-1]:.1f} %"))
    if usable:
        live, usable = server.counts.live_blocks, usable * len(server.trees)
        found.append(("blocks of the pool that hold a prefix", f"{live:,} of {usable:,}"))
        if live > usable:
            found.append(("more live blocks than the pool has", "the server sends some events twice"))
    if now.usage is not None:
        found.append(("blocks in use by requests", f"{100 * now.usage:.1f} %"))
    others = (("preemptions", now.preemptions), ("requests running", now.running), ("waiting", now.waiting))
    found += [(name, f"{value:,.0f}") for name, value in others if value is not None]
    return tuple(found)


def _ratio(part: float, whole: float) -> str:
    return f"{part:,.0f} of {whole:,.0f} ({100 * part / whole:.1f} %)" if whole else "none yet"
