"""The metrics page of a server, and what else answers at its address."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

pytest.importorskip("prometheus_client")

from engine.errors import InputError
from engine.serving import metrics
from engine.serving.metrics import MAX_BYTES, Metrics, beside_events, check_url, fetch
from engine.serving.server import Server
from tests.engine.serving.made_up import batch, stored

PAGE = b"""# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
# TYPE vllm:prefix_cache_queries counter
vllm:prefix_cache_queries_total{engine="0"} 12744.0
vllm:prefix_cache_queries_total{engine="1"} 1.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="32",num_gpu_blocks="64",x="None"} 1.0
"""
PAGES = {"/metrics": PAGE, "/html": b"<html>no</html>", "/large": b"# x\n" * (MAX_BYTES // 4 + 1), "/bytes": b"\xff"}
ODD = (
    PAGE
    + b"""# TYPE vllm:num_preemptions counter
vllm:num_preemptions_total -3.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting NaN
"""
)


class Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(302 if self.path == "/away" else 200 if self.path in {*PAGES, "/slow"} else 404)
        if self.path == "/away":
            self.send_header("Location", "/metrics")
        self.end_headers()
        self.wfile.write(PAGES.get(self.path, b""))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # who asked has left
            while self.path == "/slow":
                self.wfile.write(b"# x\n")
                time.sleep(0.01)

    def log_message(self, *args: object) -> None: ...


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Pages)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "TIMEOUT_S", 300.0)  # a busy machine may take as long
        yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join(60)


def test_what_the_page_says(address: str) -> None:
    assert fetch(f"{address}/metrics") == Metrics(queries=12745.0, usage=0.5, num_blocks=64)


def test_what_is_no_count_is_as_if_not_said() -> None:
    assert metrics.parse(ODD) == metrics.parse(PAGE)


def test_the_servers_figures_stand_beside_the_fold() -> None:
    server = Server("x")
    server.take(batch(0, stored([1, 2], [1] * 8)))
    first = Metrics(queries=100.0, hits=10.0, num_blocks=64, preemptions=2.0)
    now = Metrics(queries=300.0, hits=110.0, num_blocks=64, preemptions=3.0)
    told = dict(beside_events(server, first, now, [(32, 0.25), (63, 0.375), (126, 0.5)]))
    assert told["prompt tokens found in the cache, in all"] == "110 of 300 (36.7 %)"
    assert told["and since attached"] == "100 of 200 (50.0 %)"
    assert told["blocks of the pool that hold a prefix"] == "2 of 63"
    assert told["by its events, in a pool as large (estimate)"] == "37.5 %"
    assert told["preemptions"] == "3"
    small = Metrics(num_blocks=2)
    assert "sends some events twice" in " ".join(dict(beside_events(server, small, small, ())).values())


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/html", "no metrics page"),
        ("/large", "larger than 4 MiB"),
        ("/none", "status 404"),
        ("/bytes", "no metrics page"),
        ("/away", "status 302"),
    ],
)
def test_what_is_no_metrics_page(address: str, path: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        fetch(address + path)


def test_a_page_that_never_ends_is_left(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "WHOLE_S", 0.05)
    with pytest.raises(InputError, match="took too long"):
        fetch(f"{address}/slow")


def test_addresses() -> None:
    with pytest.raises(InputError, match="cannot be read"):
        fetch("http://127.0.0.1:9/metrics")
    for url in ("file:///etc/passwd", "host:8000", "http://", "http://h:99999/", "http://h/a b"):
        with pytest.raises(InputError, match="no address of a metrics page"):
            check_url(url)
