"""Models of the hub: those in this computer's cache, and a download, which nobody makes unasked."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import scan_cache_dir
from huggingface_hub.errors import LocalEntryNotFoundError

from engine.errors import Cancelled, InputError
from engine.geometry.dimensions import CacheGeometry
from engine.model import hub
from engine.wire.events import LocalModel
from tests.engine.tiny import config_dict

LLAMA = {**config_dict("llama"), "architectures": ["LlamaForCausalLM"]}


def stored(cache: Path, name: str, config: dict[str, Any] | None, *, weights: int = 1000, used: int = 0) -> None:
    """A repository as the hub's own library keeps one, last used `used` seconds after the epoch."""
    kind = "models" if not name.startswith("data/") else "datasets"
    folder = cache / f"{kind}--{name.replace('/', '--')}"
    revision = folder / "snapshots" / ("a" * 40)
    (folder / "blobs").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("a" * 40)
    revision.mkdir(parents=True)
    for file, content in (("config.json", json.dumps(config).encode()), ("model.safetensors", b"x" * weights)):
        if content and not (file == "config.json" and config is None):
            blob = folder / "blobs" / file
            blob.write_bytes(content)
            os.utime(blob, (used, used))
            (revision / file).symlink_to(blob)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path / "hub"
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(hub, "scan_cache_dir", partial(scan_cache_dir, cache))
    return cache


def test_decoders_with_weights_are_found_the_latest_used_first(cache: Path) -> None:
    assert hub.models_here() == ()
    per_token = CacheGeometry.from_config(LLAMA).elements_per_token
    stored(cache, "org/old", {**LLAMA, "dtype": "float32"}, used=100)
    stored(cache, "org/new", {**LLAMA, "torch_dtype": "float16"}, weights=3000, used=300)
    stored(cache, "org/plain", LLAMA, used=200)
    stored(cache, "org/encoder", {**LLAMA, "architectures": ["BertModel"]})
    stored(cache, "org/unknown", {"architectures": ["XForCausalLM"], "model_type": "no such type"})
    stored(cache, "org/none", {**LLAMA, "architectures": None})
    stored(cache, "org/weightless", LLAMA, weights=0)
    stored(cache, "org/bare", None)
    stored(cache, "data/text", LLAMA)
    sizes = {name: weights + len(json.dumps(config)) for name, weights, config in (
        ("org/old", 1000, {**LLAMA, "dtype": "float32"}), ("org/new", 3000, {**LLAMA, "torch_dtype": "float16"}),
        ("org/plain", 1000, LLAMA),
    )}  # fmt: skip
    assert hub.models_here() == tuple(
        LocalModel(name, name, "LlamaForCausalLM", sizes[name], per_token * width)
        for name, width in (("org/new", 2), ("org/plain", 2), ("org/old", 4))
    )


def test_what_is_no_name_and_what_is_not_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "snapshot_download", absent)
    for name in ("one", "a/b/c", "a b/c", "/a", "a/"):
        with pytest.raises(InputError, match="neither a folder nor a hub name"):
            hub.resolve_hub_name(name, True, lambda *_: None)
    with pytest.raises(InputError, match="'a/b' is not on this computer: allow the download"):
        hub.resolve_hub_name("a/b", False, lambda *_: None)


def absent(name: str, *, local_files_only: bool = False, **_: object) -> str:
    assert local_files_only, "nobody asked for a download"
    raise LocalEntryNotFoundError("not here")


def test_one_that_is_here_is_not_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []

    def here(name: str, **given: object) -> str:
        asked.append({"name": name, **given})
        return "/models/b"

    monkeypatch.setattr(hub, "snapshot_download", here)
    assert hub.resolve_hub_name("a/b", True, lambda *_: None) == Path("/models/b")
    assert asked == [{"name": "a/b", "local_files_only": True, "allow_patterns": hub.WANTED_FILES}]


def test_a_download_tells_its_bytes_and_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, int, int | None]] = []

    def fetch(name: str, *, local_files_only: bool = False, tqdm_class: Any = None, allow_patterns: object) -> str:
        if local_files_only:
            raise LocalEntryNotFoundError("not here")
        assert allow_patterns == hub.WANTED_FILES
        files = tqdm_class(total=3, name="files", desc="Fetching")
        files.update(1)
        data = tqdm_class(total=5000, initial=0)
        for part in (1200, None, 800):
            data.update(part)
        return "/models/b"

    monkeypatch.setattr(hub, "snapshot_download", fetch)
    assert hub.resolve_hub_name("a/b", True, lambda *one: told.append(one)) == Path("/models/b")
    assert told == [("Downloading a/b", seen, 5000) for seen in (1200, 1200, 2000)]

    def cancel(*_: object) -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        hub.resolve_hub_name("a/b", True, cancel)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError("no network\nand much more"), "no network"),
        (ValueError(""), "ValueError"),
        (OSError("x" * 400), "x" * 160),
    ],
)
def test_a_download_that_fails_says_why_in_one_line(
    error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(name: str, *, local_files_only: bool = False, **_: object) -> str:
        raise LocalEntryNotFoundError("not here") if local_files_only else error

    monkeypatch.setattr(hub, "snapshot_download", fails)
    with pytest.raises(InputError) as told:
        hub.resolve_hub_name("a/b", True, lambda *_: None)
    assert str(told.value) == (f"The model 'a/b' could not be downloaded ({reason}): check the name and the network.")
