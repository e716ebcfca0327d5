"""The dialog for which model to load, on which device and in which dtype, with the engine's forecast of the memory it
takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast, get_args

from msgspec.structs import replace
from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QStandardItemModel
from PySide6.QtWidgets import QCheckBox, QComboBox, QVBoxLayout, QWidget

from app.draw.format import byte_size, thousands
from app.kit.asking import Question
from app.kit.dialog import QuestionDialog, ask_path
from app.kit.facts import Fact, Facts
from app.kit.fields import choice_field, line_field, whole_field
from app.kit.theme import TextRole
from app.kit.widgets import on_change, plain_label, plain_tip, prose, push_button
from engine.counted import counted
from engine.spec.cache import CacheSpec, cache_label
from engine.spec.model import (
    AUTO_DEVICE,
    BUNDLED,
    BUNDLED_NAME,
    SPLIT,
    WEIGHTS,
    Dtype,
    ModelSpec,
    WeightFormat,
    with_adapters,
)
from engine.wire.devices import Device, DevicesFound, FindDevices, ForecastLoad, LoadForecast

AUTO_TEXT = "auto: as suits the machine"
MOST_CHARS = 44  # of a model's name, beside a button


class LoadingDialog(QuestionDialog):
    """Choose how to load a model, in an engine that runs at the place `engine`. Signals: `chosen(ModelSpec)`;
    `wants(Question)`, a forecast at every change of the choice."""

    wants = Signal(object)

    def __init__(self, model: ModelSpec, cache: CacheSpec, parent: QWidget, engine: str = "") -> None:
        super().__init__("Device, dtype and threads", parent, "Load", 560)
        self._model, self._cache, self._engine = model, cache, engine
        self.name, self._adapter = plain_label(), plain_label()
        self.folder = push_button("Other folder…", self._on_folder, is_small=False)
        self.add(self.name, "Model", self.folder)
        self.adapter = push_button("LoRA folder…", self._on_adapter, is_small=False)
        self.no_adapter = push_button("None", self._on_no_adapter, "Load the model without it", is_small=False)
        self.add(self._adapter, "Adapter", self.no_adapter, self.adapter)
        self.device = self._choice("Device", [(AUTO_DEVICE, AUTO_TEXT)], model.device)
        dtypes = [(name, "auto: as suits the device" if name == "auto" else name) for name in get_args(Dtype)]
        self.dtype = self._choice("dtype", dtypes, model.dtype)
        weights = [
            (each.name, f"{each.label} · logits differ" if each.bits else each.label) for each in WEIGHTS.values()
        ]
        self.weights = self._choice("Weights", weights, model.weights)
        for index, each in enumerate(WEIGHTS.values()):
            self.weights.setItemData(index, plain_tip(each.summary), Qt.ItemDataRole.ToolTipRole)
        self.threads = self.add(
            whole_field("Threads of a CPU", model.num_threads or 0, 0, 4096, automatic="all but one", is_grouped=True)
        )
        self.context = self.add(
            whole_field("Tokens to count on", 0, unit=" tokens", automatic="its own context", is_grouped=True)
        )
        self.facts = Facts("What the model would take")
        self._show_names()
        layout = self.layout()
        assert isinstance(layout, QVBoxLayout)
        layout.insertWidget(1, self.facts)
        self._show([Fact("asking the engine…", role="muted")])
        on_change(self._refresh, self.device, self.dtype, self.weights, self.threads, self.context)

    def _choice(self, label: str, choices: Sequence[tuple[str, str]], chosen: str) -> QComboBox:
        is_known = chosen in {value for value, _ in choices}  # the engine may not have listed its devices yet
        return self.add(choice_field(label, choices if is_known else [*choices, (chosen, chosen)], chosen))

    def answer(self) -> ModelSpec:
        """Return the model as chosen; raises `InputError` where that is impossible."""
        return ModelSpec(
            self._model.source,
            cast(Dtype, self.dtype.currentData()),
            self.device.currentData(),
            num_threads=self.threads.value() or None,
            runner=self._model.runner,
            weights=cast(WeightFormat, self.weights.currentData()),
            paged_attention=self._model.paged_attention,
        )

    def _on_folder(self) -> None:
        ask_path(self, self._engine, self.wants.emit, "Model folder", (), self._choose_source, self._model.base)

    def _on_adapter(self) -> None:
        def take(folder: str) -> None:
            self._choose_source(with_adapters(self._model.base, [folder]))

        start = str(self._model.adapter or "")
        ask_path(self, self._engine, self.wants.emit, "Adapter folder", (), take, start)

    def _on_no_adapter(self) -> None:
        self._choose_source(self._model.base)

    def _choose_source(self, source: str) -> None:
        """Choose another model, or another adapter for it."""
        self._model = replace(self._model, source=source)
        self._show_names()
        self._refresh()

    def _show_names(self) -> None:
        base, adapter = self._model.base, str(self._model.adapter or "")
        for label, path, name in (
            (self.name, base, BUNDLED_NAME if base == BUNDLED else base),
            (self._adapter, adapter, adapter or "none"),
        ):  # the end of a long path says most
            label.setText(prose(name if len(name) <= MOST_CHARS else f"…{name[1 - MOST_CHARS :]}"))
            label.setToolTip(plain_tip(path))
        self.no_adapter.setVisible(bool(adapter))

    def _refresh(self) -> None:
        if (wanted := self.check()) is not None:
            question = ForecastLoad(wanted, self._cache, self.context.value() or None)
            self.wants.emit(Question(question, self.show_forecast, slot=self))

    def ask(self, slot: Callable[..., object]) -> None:
        self.wants.emit(Question(FindDevices(), self.show_devices))
        super().ask(slot)

    # ---- answers of the engine -----------------------------------------------------------------------------------

    def show_devices(self, found: DevicesFound) -> None:
        """Offer the devices of this machine, and disable the weight formats that it cannot load."""
        chosen = self.device.currentData()
        self.device.blockSignals(True)
        self.device.clear()
        self.device.addItem(AUTO_TEXT, AUTO_DEVICE)
        for device in found.devices:
            self.device.addItem(device_words(device), device.name)
        if sum(device.is_gpu for device in found.devices) > 1:
            self.device.addItem("split over all GPUs", SPLIT)
            _enable(self.device, self.device.count() - 1, found.why_no_split)
        self.device.setCurrentIndex(max(0, self.device.findData(chosen)))
        self.device.blockSignals(False)
        for each in found.weights:
            _enable(self.weights, self.weights.findData(each.name), each.why_not)
        self._refresh()

    def show_forecast(self, told: LoadForecast) -> None:
        """Show what the newest choice would take."""
        self.refuse(told.problem)
        self.ok.setEnabled(not told.problem)
        self._show([] if told.problem else forecast_facts(told, cache_label(self._cache)))

    def _show(self, facts: list[Fact]) -> None:
        self.facts.show_facts(tuple(facts))
        self.facts.setVisible(bool(facts))


def _enable(box: QComboBox, index: int, why_not: str) -> None:
    """Enable or disable an entry; a disabled one shows the reason in its text."""
    model = box.model()
    assert isinstance(model, QStandardItemModel)
    item = model.item(index)
    item.setEnabled(not why_not)
    if why_not:
        item.setText(f"{item.text().partition(' — ')[0]} — {prose(why_not)}")


def device_words(device: Device) -> str:
    """Return `cuda:0 · NVIDIA L4 · 20.1 of 22.0 GiB free · no bfloat16`."""
    parts = [device.name, prose(device.label)]
    parts.append(f"{byte_size(device.free_bytes)} of {byte_size(device.total_bytes)} free")
    return " · ".join((*parts, *(f"no {name}" for name in device.lacks)))


def forecast_facts(told: LoadForecast, cache: str) -> list[Fact]:
    """List what a model would take and how much memory is free."""
    free, freed = byte_size(told.free_bytes), byte_size(told.freed_bytes)
    fits_later = told.needed_bytes <= told.free_bytes + told.freed_bytes
    role: TextRole = "good" if told.fits else "warning" if fits_later else "bad"
    verdict = "fits" if told.fits else "fits once the present model is unloaded" if fits_later else "does not fit"
    where = f"{told.device} in {told.dtype}"
    return [
        Fact("goes to", where),
        *([Fact(prose(told.why_device), role="muted", indent=1)] if told.why_device else []),
        Fact("weights", byte_size(told.weight_bytes), thousands(told.weight_bytes)),
        Fact(
            f"{cache} cache, {counted(told.context, 'token')}", byte_size(told.cache_bytes), thousands(told.cache_bytes)
        ),
        Fact("together", byte_size(told.needed_bytes), thousands(told.needed_bytes), has_rule=True),
        Fact("free there", free, thousands(told.free_bytes)),
        *([Fact("held by the present model", freed, role="muted", indent=1)] if told.freed_bytes else []),
        Fact("", verdict, role=role),
        *(Fact(prose(note), role="warning") for note in told.notes),
    ]


class HubDialog(QuestionDialog):
    """Name a model of the hub. Signal: `chosen(ModelSpec)`."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__("Model by hub name", parent, "Load")
        self.name = self.add(line_field("Hub name", hint="organisation/model"))
        self._download = QCheckBox("Allow download if it is not on this computer")
        self.add(self._download, "")

    def answer(self) -> ModelSpec:
        return ModelSpec(self.name.text().strip(), allow_download=self._download.isChecked())
