"""The cache calculator: how many bytes a cache takes and how many tokens fit, for any model, context, batch size, dtype
and cache mode."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QSignalBlocker
from PySide6.QtWidgets import QWidget

from app.draw.format import byte_size, decimal, thousands
from app.kit.dialog import Sheet, path_here
from app.kit.facts import Fact, section, term_facts, term_tip
from app.kit.fields import choice_field, count_field, gib_field
from app.kit.theme import TextRole
from app.kit.widgets import push_button
from engine.counted import counted
from engine.errors import InputError
from engine.files.text import read_json_object
from engine.geometry.dimensions import CacheGeometry
from engine.max import GIB
from engine.predict.bytes import (
    PUBLISHED,
    Budget,
    BudgetSpec,
    KindBudget,
    PublishedModel,
    budget_of,
    tokens_that_fit,
    tutorial_table,
)
from engine.spec.cache import PAGE_SIZES, PRESETS, CacheSpec, cache_label, preset_of, tuned
from engine.spec.codec import ROW_OF_NAME, CodecSpec, Coding
from engine.spec.terms import Term
from engine.wire.status import ModelInfo

LOADED, TYPED, CONFIG = "loaded", "typed", "config"
DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn")
# The dimensions of LLaMA-7B, the tutorial's large model, are filled in at first.
_TYPED = (32, 32, 128)


AS_IT_IS, AS_KEYS, IN_USE = "", "", "in use"


class Calculator(Sheet):
    """Show the results of `engine.predict.bytes` while the user types. Nothing is loaded or allocated."""

    refusals = (InputError,)
    copied = "The calculator's results are copied"

    def __init__(self, model: ModelInfo | None, cache: CacheSpec, parent: QWidget) -> None:
        """`cache` is the cache in use: its mode and parameters are chosen at first."""
        super().__init__("Cache calculator", parent)
        self._model, self._live = model, cache
        self._config: CacheGeometry | None = None
        self._config_path = ""
        self._config_problem = ""
        known = model.geometry if model is not None else None
        sources = [(LOADED, model.name)] if model is not None else []
        published = [(other.name, other.name) for other in PUBLISHED]
        others = [*published, (TYPED, "typed dimensions"), (CONFIG, "a config.json")]
        self.source = self.add(choice_field("Model", [*sources, *others], None if sources else TYPED))
        self._browse = push_button("Choose config.json…", self._on_browse, is_small=False)
        self.form.addRow("", self._browse)
        self.layers = self.add(count_field("Layers", _TYPED[0]))
        self.kv_heads = self.add(count_field("KV heads", _TYPED[1]))
        self.head_dim = self.add(count_field("Head dimension", _TYPED[2]))
        longest = known.max_length if known is not None else None
        self.context = self.add(count_field("Context", min(longest or 2048, 2**31 - 1), " tokens"))
        newest = "all but newest"
        self.prompt = self.add(count_field("Prompt tokens", 0, " tokens", least=0, automatic=newest))
        self.batch = self.add(count_field("Sequences", 1))
        dtype = model.dtype if model is not None else "bfloat16"
        self.dtype = self.add(choice_field("Cache dtype", [(name, name) for name in DTYPES], dtype))
        modes = [(preset.name, preset.label) for preset in PRESETS.values()]
        chosen = preset_of(cache).name
        if cache != PRESETS[chosen].spec:  # it has parameters of its own
            modes.insert(0, (IN_USE, f"{cache_label(cache)}, in use"))
            chosen = IN_USE
        self.mode = self.add(choice_field("Cache mode", modes, chosen))
        pages = [(size, counted(size, "token")) for size in PAGE_SIZES]
        self.page_size = self.add(choice_field("Page size", pages, cache.page_size))
        auto = "as the mode does"
        self.reserved = self.add(count_field("Reserved length", 0, " tokens", least=0, automatic=auto))
        self.kept = self.add(count_field("Rows kept", 0, " tokens", least=0, automatic=auto))
        codecs = [(AS_IT_IS, auto), *((name, name) for name in ROW_OF_NAME)]
        self.keys = self.add(choice_field("Keys written as", codecs, AS_IT_IS))
        self.values = self.add(choice_field("Values written as", [(AS_KEYS, "as the keys"), *codecs[1:]], AS_KEYS))
        self.memory = self.add(gib_field("Memory", 24.0))
        self.resize(760, 640)
        self.source.currentIndexChanged.connect(self._choose_dtype)
        self.refresh()

    # ---- fields --------------------------------------------------------------------------------------------------

    def _adapt(self) -> None:
        source, cache = self.source.currentData(), self._chosen()
        for field in (self.layers, self.kv_heads, self.head_dim):
            self.use(field, source == TYPED)
        self._show_dimensions(self._known())
        self._browse.setVisible(source == CONFIG)
        self._browse.setText(Path(self._config_path).parent.name or "Choose config.json…")
        self.use(self.page_size, cache.is_paged)
        self.use(self.reserved, cache.form == "static")
        self.use(self.kept, not cache.retention.keeps_all)
        for box in (self.keys, self.values):
            self.use(box, not cache.row.takes_no)

    def _choose_dtype(self) -> None:
        """Choose the dtype in which the chosen model computes; that of published ones is bfloat16."""
        if (model := self._chosen_model) is not None:
            dtype = model.dtype if isinstance(model, ModelInfo) else "bfloat16"
            self.dtype.setCurrentIndex(self.dtype.findData(dtype))

    def _chosen(self) -> CacheSpec:
        """Return the preset of the chosen mode, or the cache in use."""
        name = self.mode.currentData()
        return self._live if name == IN_USE else PRESETS[name].spec

    @property
    def _chosen_model(self) -> ModelInfo | PublishedModel | None:
        """The loaded model, or a published one; None for typed dimensions and a config.json."""
        source = self.source.currentData()
        if source == LOADED:
            return self._model
        return next((model for model in PUBLISHED if model.name == source), None)

    def _known(self) -> CacheGeometry | None:
        """Return the geometry of the chosen model or of the config.json; None for typed dimensions."""
        model = self._chosen_model
        return model.geometry if model is not None else self._config if self.source.currentData() == CONFIG else None

    def _weight_bytes(self) -> int:
        """Bytes of the chosen model's weights; 0 where only its dimensions are known."""
        return self._chosen_model.weight_bytes if self._chosen_model is not None else 0

    def _show_dimensions(self, known: CacheGeometry | None) -> None:
        """Copy the dimensions of a known model into the fields, so that they can be changed by typing."""
        if known is None or not known.attention_layers:
            return
        values = (len(known.attention_layers), known.num_kv_heads, known.head_dim)
        for field, value in zip((self.layers, self.kv_heads, self.head_dim), values, strict=True):
            with QSignalBlocker(field):
                field.setValue(value)

    def _on_browse(self) -> None:
        if path := path_here(self, "A model's config.json", (".json",)):
            self.read_config(Path(path))

    def read_config(self, path: Path) -> None:
        """Read the dimensions from a config.json; a problem is shown in place of the results."""
        self._config_path = str(path)
        try:
            self._config, self._config_problem = CacheGeometry.from_config(read_json_object(path, "model config")), ""
        except InputError as problem:
            self._config, self._config_problem = None, str(problem)
        self.refresh()

    def dimensions(self) -> CacheGeometry:
        """Return the dimensions to calculate with; raises `InputError` where there are none."""
        known = self._known()
        if known is not None:
            return known
        if self.source.currentData() == CONFIG:
            raise InputError(self._config_problem or "Choose a model's config.json first.")
        return CacheGeometry.uniform(self.layers.value(), self.kv_heads.value(), self.head_dim.value())

    def spec(self) -> BudgetSpec:
        """Return what is to be stored and how; raises `InputError` where the choices do not go together."""
        return BudgetSpec(
            cache=self._tuned(self._chosen()),
            context=self.context.value(),
            batch=self.batch.value(),
            dtype=self.dtype.currentData(),
            prompt=self.prompt.value() or None,
        )

    def _tuned(self, cache: CacheSpec) -> CacheSpec:
        """Return the mode with the values of those fields that apply to it."""
        given: dict[str, object] = {}
        if cache.is_paged:
            given["page_size"] = self.page_size.currentData()
        if cache.form == "static" and self.reserved.value():
            given["max_length"] = self.reserved.value()
        if not cache.retention.keeps_all and self.kept.value():
            given["window" if cache.retention.is_by_position else "budget"] = self.kept.value()
        if self.keys.isEnabled() and (self.keys.currentData() or self.values.currentData()):
            given["codec"] = self._codec(cache.codec)
        return tuned(cache, **given)

    def _codec(self, codec: CodecSpec) -> CodecSpec:
        """Return the codecs of K and V as chosen, else those of the mode. Values without a codec of their own use the
        one chosen for the keys."""
        keys, values = self.keys.currentData(), self.values.currentData()
        return CodecSpec(
            Coding(keys) if keys else codec.keys, Coding(values or keys) if values or keys else codec.values
        )

    # ---- results -------------------------------------------------------------------------------------------------

    def _facts(self) -> tuple[Fact, ...]:
        geometry, spec = self.dimensions(), self.spec()
        budget = budget_of(geometry, spec)
        return (*self._totals(budget), self._fit(geometry, spec), *self._kinds(budget), *self._tutorial())

    def _totals(self, budget: Budget) -> list[Fact]:
        facts = [
            self._bytes("bytes per token", budget.bytes_per_token),
            self._bytes("stored per sequence", budget.stored_bytes_per_sequence),
            *_formula(tuple(term for term in budget.terms if term.name != "state")),
            self._bytes("reserved per sequence", budget.reserved_bytes_per_sequence),
        ]
        state = budget.state_bytes_per_sequence
        if state is None:
            facts.append(Fact("recurrent state", "only the model can tell", role="muted"))
        elif state:
            facts.append(self._bytes("recurrent state per sequence", state))
            facts += _formula(tuple(term for term in budget.terms if term.name == "state"))
        if budget.pool_bytes:
            facts.append(self._bytes("pool, for all sequences", budget.pool_bytes))
        if budget.host_bytes:
            facts.append(self._bytes("copy in host memory", budget.host_bytes))
        total = "total, {0} sequences" if budget.spec.batch > 1 else "total, one sequence"
        facts.append(self._bytes(total.format(thousands(budget.spec.batch)), budget.total_bytes))
        if weights := self._weight_bytes():
            held = max(budget.total_bytes, budget.pool_bytes)
            facts.append(self._bytes("weights of the model", weights))
            facts.append(self._bytes("model and cache", weights + held))
        return facts

    def _fit(self, geometry: CacheGeometry, spec: BudgetSpec) -> Fact:
        """The longest context whose cache fits in the memory beside the weights."""
        memory, weights = int(self.memory.value() * GIB), self._weight_bytes()
        label = f"fits on {byte_size(memory)}"
        if weights > memory:
            tip = "The weights of the model alone take more than the memory."
            return Fact(label, f"no: weights of {byte_size(weights)}", role="bad", tip=tip)
        tip = "The longest context whose cache takes at most the memory"
        tip += f", less {byte_size(weights)} of weights." if weights else "; weights are not counted."
        fitting = tokens_that_fit(geometry, spec, memory - weights)
        if fitting is None:
            return Fact(label, "any context", role="good", tip=tip)
        each = " each" if spec.batch > 1 else ""
        role: TextRole = "good" if fitting >= spec.context else "bad"
        return Fact(label, f"up to {counted(fitting, 'token')}{each}", role=role, tip=tip)

    def _kinds(self, budget: Budget) -> list[Fact]:
        return [*section("By kind of layer, per sequence"), *(self._kind(kind) for kind in budget.kinds)]

    def _kind(self, kind: KindBudget) -> Fact:
        label = f"{thousands(kind.num_layers)} × {kind.kind}"
        if not kind.reserved_bytes and not kind.bytes_per_token:
            state = kind.state_bytes
            text = "keeps none" if not state else f"state {byte_size(state)}"
            return Fact(label, text, indent=1, role="muted")
        per_token = f"{thousands(kind.bytes_per_token)} a token"
        return Fact(label, thousands(kind.reserved_bytes), per_token, indent=1)

    def _tutorial(self) -> list[Fact]:
        return [*section("For comparison: known models in float16, one sequence"), *(
            Fact(
                f"{row.model} at {thousands(row.context)}", f"{decimal(row.megabytes, 1)} MB",
                thousands(row.bytes), indent=1, role="muted",
            )
            for row in tutorial_table()
        )]  # fmt: skip

    def _bytes(self, label: str, num_bytes: int) -> Fact:
        return Fact(label, thousands(num_bytes), byte_size(num_bytes) if num_bytes >= 1024 else "")


def _formula(terms: tuple[Term, ...]) -> tuple[Fact, ...]:
    """The formula of the line above, with its values filled in; of several terms each has a line."""
    if len(terms) == 1:
        (term,) = terms
        return (Fact(f"formula {term.symbols}", term.values, indent=1, role="muted", tip=term_tip(term)),)
    return term_facts(terms)
