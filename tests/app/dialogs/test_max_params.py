from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from PySide6.QtWidgets import QApplication, QWidget

from app.dialogs.max_params import MaxParams
from app.shell import Shell
from engine.geometry.dimensions import CacheGeometry
from tests.app import samples
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine
from tests.app.found import button

MLA = {
    "model_type": "deepseek_v3", "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 16,
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "hidden_size": 2048,
    "max_position_embeddings": 4096,
}  # fmt: skip


@pytest.fixture
def sheet(host: QWidget) -> Iterator[MaxParams]:
    sheet = MaxParams(samples.model_info(), host)
    sheet.show()
    yield sheet
    sheet.close()
    QApplication.processEvents()


def lines(sheet: MaxParams) -> dict[str, str]:
    return dict(line.strip().split("\t", 1) for line in sheet.facts.text().splitlines() if "\t" in line)


def connect(sheet: MaxParams, connector: str) -> None:
    sheet.connector.setCurrentIndex(sheet.connector.findData(connector))


def test_the_names_are_those_of_max(sheet: MaxParams) -> None:
    found = lines(sheet)
    assert found["shape_per_block"] == "[2, 6, 128, 4, 32]"
    assert found["bytes_per_block"] == f"{2 * 6 * 128 * 4 * 32 * 4:,}"
    assert found["n_kv_heads_per_device"] == "4"
    assert found["dtype_shorthand"] == "f32"
    assert found["quantized_kv_cache"] == "False"
    assert found["num_device_blocks"] == f"{8 * 1024**3 // 786_432:,}"


def test_of_many_buffers_the_first_are_named_and_the_others_counted(host: QWidget) -> None:
    """Each of twelve devices has one; their lines stand below one another."""
    sheet = MaxParams(samples.model_info(), host)
    sheet.devices.setValue(12)
    sheet.replicas.setValue(12)
    facts = sheet.facts.facts
    at = next(n for n, fact in enumerate(facts) if "more buffer" in fact.label)
    assert facts[at].label == "and 4 more buffers"
    assert [fact.label.split()[1] for fact in facts[at - 8 : at]] == list("01234567")
    assert {fact.indent for fact in facts[at - 8 : at + 1]} == {1}
    sheet.close()


def test_query_heads_are_the_models_and_max_leaves_them_out(sheet: MaxParams) -> None:
    """8 query heads; the field of MAX's parameters stays None where attention is not latent, and is copied so."""
    found = {fact.label: (fact.text, fact.aside) for fact in sheet.facts.facts}
    assert found["num_q_heads"] == ("8", "None in MAX: only MLA needs it")
    assert found["num_q_heads_per_device"] == ("–", "None in MAX: only MLA needs it")
    assert sheet.values()["num_q_heads"] is None


def test_every_field_changes_what_follows(sheet: MaxParams) -> None:
    sheet.devices.setValue(2)
    assert lines(sheet)["n_kv_heads_per_device"] == "2"
    assert lines(sheet)["tensor_parallel_degree"] == "2"
    sheet.replicas.setValue(2)
    assert lines(sheet)["n_kv_heads_per_device"] == "4"
    sheet.page_size.setValue(256)
    assert lines(sheet)["shape_per_block"] == "[2, 6, 256, 4, 32]"
    sheet.dtype.setCurrentIndex(sheet.dtype.findData("float8_e4m3fn"))
    sheet.quantized.setChecked(True)
    sheet.granularity.setValue(16)
    assert lines(sheet)["shape_per_scale_block"] == "[2, 6, 256, 4, 2]"
    assert lines(sheet)["dtype_shorthand"] == "f8_m4e3fn"


def test_a_speculative_method_shows_what_it_changes_and_what_not(sheet: MaxParams) -> None:
    assert not sheet.drafts.isEnabled()
    before = [fact.label for fact in sheet.facts.facts]
    sheet.speculative.setCurrentIndex(sheet.speculative.findData("dflash"))
    sheet.drafts.setValue(3)
    assert sheet.drafts.isEnabled()
    facts = {fact.label: (fact.text, fact.aside) for fact in reversed(sheet.facts.facts)}
    assert facts["num_draft_tokens_per_step"][0] == "3"
    assert facts["num_draft_tokens"] == ("3", "without: 0")
    assert facts["max_prompt_length"] == ("4", "without: 1")
    assert facts["first"] == ("[256, 512, 768]", "without: [1, 256, 512]")
    labels = [fact.label for fact in sheet.facts.facts]
    same = labels[labels.index("not changed:") :]
    assert {"bytes_per_block", "shape_per_block", "kv_blocks"} <= set(same)
    assert "num_draft_tokens" not in same
    assert (sheet.values()["speculative_method"], sheet.values()["num_draft_tokens"]) == ("dflash", 3)
    sheet.speculative.setCurrentIndex(0)
    assert [fact.label for fact in sheet.facts.facts] == before
    assert sheet.values()["num_draft_tokens"] == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.devices.setValue(3), "n_kv_heads (4) must be divisible by the number of devices (3)."),
        (lambda s: s.devices.setValue(0), "A KV cache needs at least one device; n_devices is 0."),
        (lambda s: s.replicas.setValue(2), "data_parallel_degree 2 needs as many devices; n_devices is 1."),
        (lambda s: s.page_size.setValue(0), "page_size must be a whole number from 1 to 2,147,483,647, not 0."),
    ],
)
def test_a_refusal_stands_in_place_word_for_word(sheet: MaxParams, change: object, message: str) -> None:
    change(sheet)  # type: ignore[operator]
    assert sheet.problem.text() == message
    assert sheet.facts.text() == ""
    assert not button(sheet, "Copy as JSON").isEnabled()


def test_the_rules_of_connectors(sheet: MaxParams) -> None:
    connect(sheet, "local")
    sheet.prefix.setChecked(False)
    assert sheet.problem.text().startswith("The local KV connector requires prefix caching")
    sheet.prefix.setChecked(True)
    assert lines(sheet)["num_host_blocks"] == f"{50 * 1024**3 // 786_432:,}"
    sheet.swap.setValue(0)
    assert sheet.problem.text().startswith("The local KV connector requires host memory")
    connect(sheet, "tiered")
    sheet.swap.setValue(4)
    assert "disk_offload_dir is None" in sheet.problem.text()
    sheet.folder.setText("/mnt/kv")
    assert lines(sheet)["tiers"] == "['device', 'host', 'disk']"
    assert sheet.problem.text() == ""


def test_the_managers_page_rule_is_told_and_hides_nothing(sheet: MaxParams) -> None:
    sheet.page_size.setValue(16)
    assert "multiple of 128, not 16" in sheet.problem.text()
    assert lines(sheet)["shape_per_block"] == "[2, 6, 16, 4, 32]"


def test_too_little_memory_is_told(sheet: MaxParams) -> None:
    sheet.memory.setValue(0)
    assert "hold no KV cache page of 786432 bytes" in sheet.problem.text()
    assert "num_device_blocks" not in lines(sheet)


def test_fields_that_mean_nothing_step_back(sheet: MaxParams) -> None:
    assert not sheet.swap.isEnabled()
    assert not sheet.granularity.isEnabled()
    connect(sheet, "dkv")
    assert sheet.endpoint.isEnabled()
    assert not sheet.folder.isEnabled()


def test_latent_attention_keeps_one_head(host: QWidget) -> None:
    info = replace(samples.model_info(), geometry=CacheGeometry.from_config(MLA))
    sheet = MaxParams(info, host)
    assert lines(sheet)["shape_per_block"] == "[1, 4, 128, 1, 576]"
    sheet.devices.setValue(2)
    assert lines(sheet)["replicates_kv_across_tp"] == "True"
    sheet.close()


def test_it_is_copied_as_json(sheet: MaxParams) -> None:
    button(sheet, "Copy as JSON").click()
    found = json.loads(QApplication.clipboard().text())
    assert found["shape_per_block"] == [2, 6, 128, 4, 32]
    assert found["devices"] == ["gpu:0"]
    assert found["kv_connector"] is None
    assert found["num_device_blocks"] == 8 * 1024**3 // 786_432


def test_it_opens_from_the_menu_once_a_model_is_there(shell: Shell, engine: FakeEngine) -> None:
    action = shell.window.actions_["cache.max"]
    assert not action.isEnabled()
    engine.loaded()
    turn(shell)
    action.trigger()
    sheet = shell.window.findChild(MaxParams)
    assert isinstance(sheet, MaxParams)
    assert sheet.windowTitle() == "MAX parameters · Tales"
    sheet.close()
