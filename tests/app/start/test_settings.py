from __future__ import annotations

import os
import random
import stat
from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication

from app.main import Beginning
from app.start.arguments import parse
from app.start.settings import DEFAULT_PROMPT, MAX_RECENT, Settings
from engine.spec.model import ModelSpec


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "settings.ini"


def test_a_first_start_has_defaults(path: Path) -> None:
    settings = Settings.load(path)
    assert settings == Settings()
    assert settings.prompt == DEFAULT_PROMPT


def test_where_the_engine_runs_comes_back_unless_it_is_no_choice(path: Path) -> None:
    assert Settings(engine="process").save(path)
    assert Settings.load(path).engine == "process"
    path.write_text(path.read_text().replace("engine=process", "engine=moon"))
    assert Settings.load(path).engine == "auto"
    assert parse([]).engine is None  # what was remembered counts
    assert parse(["--engine", "thread"]).engine == "thread"


def test_what_kept_checkpoints_may_take_comes_back_unless_it_is_nonsense(path: Path) -> None:
    assert Settings(kept_bytes=512 << 20).save(path)
    assert Settings.load(path).kept_bytes == 512 << 20
    path.write_text(path.read_text().replace("kept_mib=512", "kept_mib=-3"))
    assert Settings.load(path).kept_bytes is None
    assert parse([]).kept_bytes is None
    assert parse(["--kept-mib", "64"]).kept_bytes == 64 << 20
    with pytest.raises(SystemExit):
        parse(["--kept-mib", "-1"])


def test_what_the_command_line_says_is_of_that_run_alone(path: Path) -> None:
    ours = Settings(theme="light", loading=ModelSpec(dtype="float16"), kept_bytes=512 << 20)
    assert ours.save(path)
    options = ["--theme", "dark", "--device", "cuda:1", "--dtype", "bfloat16", "--kept-mib", "64", "--engine", "thread"]
    settings = Beginning(parse([*options, "--settings", str(path)])).settings
    assert (settings.theme, settings.loading.device, settings.kept_bytes) == ("dark", "cuda:1", 64 << 20)
    assert settings.save(path)
    again = Settings.load(path)
    assert (again.theme, again.loading.dtype, again.kept_bytes) == ("light", "float16", 512 << 20)
    assert again.loading.device == "auto"
    settings.theme = "system"  # chosen in the window
    settings.loading = ModelSpec(dtype="float32")
    assert settings.save(path)
    again = Settings.load(path)
    assert (again.theme, again.loading.dtype, again.kept_bytes) == ("system", "float32", 512 << 20)


def test_one_recent_model_stays_a_list(path: Path) -> None:
    Settings(recent_models=["only"]).save(path)
    assert Settings.load(path).recent_models == ["only"]


def test_recent_models_are_few_and_newest_first() -> None:
    settings = Settings()
    for index in range(20):
        settings.remember_model(f"m{index % 12}")
    assert settings.recent_models[0] == "m7"
    assert len(settings.recent_models) == MAX_RECENT == len(set(settings.recent_models))


def test_a_megabyte_of_prompt_is_not_kept_in_an_ini(path: Path) -> None:
    Settings(prompt="x" * 1_000_000).save(path)
    assert Settings.load(path).prompt == DEFAULT_PROMPT
    assert path.stat().st_size < 10_000


def test_half_characters_do_not_break_saving(path: Path) -> None:
    assert Settings(prompt="a\udc80b\x00c").save(path)
    assert Settings.load(path).prompt.startswith("a")


def test_nowhere_to_write_is_no_crash(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not Settings().save(tmp_path / "file" / "settings.ini")


def test_devices_and_pipes_stay_what_they_are(tmp_path: Path) -> None:
    """Qt would wait for a pipe without end, and put a file in a device's place."""
    pipe, device = tmp_path / "pipe", tmp_path / "device"
    os.mkfifo(pipe)
    device.symlink_to("/dev/null")
    for path in (pipe, device):
        assert Settings.load(path) == Settings()
        assert not Settings().save(path)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert device.is_symlink()


def test_settings_that_are_no_file_are_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(["--settings", "/dev/null"])
    said = capsys.readouterr().err
    assert "no regular file" in said
    assert said.count("\n") == 1


def test_a_file_that_is_no_ini_is_set_aside(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"\x00\xff\x00 not an ini")
    settings = Settings.load(path)
    assert settings.theme == "dark"
    assert settings.set_aside is not None
    assert settings.set_aside.read_bytes().endswith(b"not an ini")
    assert not path.exists()


def test_serialised_objects_are_never_decoded(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("[window]\ngeometry=@Variant(\\0\\0\\0\\x7f\\0\\0\\0\\nQObject*\\0)\n")
    assert Settings.load(path).set_aside is not None


def corrupted(raw: bytearray, rng: random.Random) -> bytearray:
    """The bytes with one accident: a byte changed, some lost, some added, or the end gone."""
    place = rng.randrange(len(raw)) if raw else 0
    match rng.randrange(4):
        case 0 if raw:
            raw[place] = rng.randrange(256)
        case 1:
            del raw[place : place + rng.randint(1, 40)]
        case 2:
            raw[place:place] = rng.randbytes(rng.randint(1, 30))
        case _:
            del raw[place:]
    return raw


def test_no_corruption_blocks_a_start(qapp: QApplication, tmp_path: Path) -> None:
    path = tmp_path / "s.ini"
    Settings("light", "learn", ["a", "b"], "Once upon", bytes(range(256)), b"docks" * 9).save(path)
    whole = path.read_bytes()
    for seed in range(500):
        rng = random.Random(seed)
        raw = bytearray(whole)
        for _ in range(rng.randint(1, 12)):
            raw = corrupted(raw, rng)
        path.write_bytes(raw)
        settings = Settings.load(path)
        assert settings.theme in ("dark", "light", "system"), seed
        assert all(isinstance(source, str) for source in settings.recent_models), seed
    assert settings.save(path)


def test_where_models_are_loaded_comes_back_unless_it_is_nonsense(path: Path) -> None:
    loading = ModelSpec(device="cuda:1", dtype="bfloat16", weights="int8", num_threads=3)
    assert Settings(loading=loading).save(path)
    assert Settings.load(path).loading == loading
    path.write_text(path.read_text().replace("bfloat16", "float3").replace("threads=3", "threads=-1"))
    assert Settings.load(path).loading == ModelSpec()
    assert parse([]).loading is None  # what was remembered counts
    given = parse(["--device", "cpu", "--threads", "2", "--dtype", "float16", "--weights", "int4"])
    assert given.loading == given.model == ModelSpec(device="cpu", dtype="float16", weights="int4", num_threads=2)
    for bad in (["--threads", "0"], ["--dtype", "float3"], ["--weights", "int3"]):
        with pytest.raises(SystemExit):
            parse(bad)
