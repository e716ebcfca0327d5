"""What the palette finds and what can be typed into it: actions, panels, settings, places and edits.

It is imported when the palette is opened, so that the window itself opens faster.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from PySide6.QtCore import Qt

from app.actions import dialogs
from app.control.actions import Actions, native
from app.control.conditions import reasons
from app.dialogs.help import GLOSSARY, terms
from app.draw.format import thousands
from app.kit.asking import ignore
from app.kit.panel_rows import PANELS, TIMELINE
from app.kit.widgets import prose
from app.models import Models
from app.panels.prompt.view import CHAT, IDS, TEXT
from app.window.menus import RecentFiles, time_words
from app.window.palette import TYPED, Entry
from app.window.status_line import SELECTED
from engine.errors import InputError
from engine.spec import lenses
from engine.spec.cache import PRESETS, CacheSpec, cache_label, parameters_of, tuned
from engine.spec.edit import FORMS, parse_edit
from engine.spec.parameter import Parameter, ParameterValue

if TYPE_CHECKING:
    from app.shell import Shell


# Other words for the ways to write a prompt.
PROMPT_WORDS = {
    TEXT: "plain text, completion",
    CHAT: "conversation, turns, roles, messages, chat template",
    IDS: "token ids, input ids, numbers",
}


def entries(shell: Shell) -> list[Entry]:
    """All of them, in the order in which those that match equally well are listed."""
    window = shell.window
    found = [*action_entries(shell.actions)]
    found += [
        Entry(f"prompt.as_{mode}", f"Prompt: {text}", partial(_write_as, shell, mode), PROMPT_WORDS[mode], tip)
        for mode, text, tip in window.prompt.choices
    ]
    found += [
        Entry(f"panel.{name}", f"Panel: {row.title}", partial(_show_panel, shell, name), row.also, row.says)
        for name, row in PANELS.items()
    ]
    show_timeline = partial(window.timeline.setFocus, Qt.FocusReason.ShortcutFocusReason)
    found.append(Entry("panel.timeline", f"Panel: {TIMELINE.title}", show_timeline, TIMELINE.also, TIMELINE.says))
    found += parameter_entries(shell)
    found += [
        Entry(
            f"lens.{lens.name}",
            f"Lens: {lens.words}",
            partial(shell.navigator.show_lens, lens.name),
            lens.label,
            lens.formula,
        )
        for lens in lenses.LENSES.values()
    ]
    found += [*_recent_files(window.recent), *_recent_sessions(shell)]
    found += [
        Entry(f"glossary.{title}", f"Glossary: {title}", partial(dialogs.open_manual, shell, f"{GLOSSARY}#{title}"))
        for title in terms()
    ]
    return found


def _write_as(shell: Shell, mode: str) -> None:
    """Write the prompt as a text, as a conversation or as token ids."""
    shell.window.show_panel("prompt")
    shell.window.prompt.choose(mode)


def _show_panel(shell: Shell, name: str) -> None:
    """Show a panel, and say what it is: it may have been in sight already."""
    shell.window.show_panel(name)
    shell.models.status.notify(PANELS[name].says)


def action_entries(actions: Actions) -> Iterator[Entry]:
    """An entry for each action, in the order of the menus."""
    for name in actions.names():
        declared = actions.declared(name)
        yield Entry(
            name,
            actions.full_name(name),
            actions[name].trigger,
            declared.also,
            declared.tip,
            native(declared.key),
            actions.reason(name),
        )


def _recent_files(menu: RecentFiles) -> Iterator[Entry]:
    """An entry for each file of the menu of recent ones; a disabled one if it has none."""
    if not menu.actions():
        yield Entry("recent.files", "Recent files", menu.clear, "recent", why_not="no file was opened yet")
    for action in menu.actions():
        title, _, where = action.text().replace("&&", "&").partition("\t")
        name = f"Recent file: {title}{where and f' · {where}'}"
        yield Entry(f"recent.{action.data()}", name, action.trigger, "recent", prose(str(action.data())))


def _recent_sessions(shell: Shell) -> Iterator[Entry]:
    """An entry for each session that is kept; a disabled one if there is none."""
    kept = shell.models.kept_sessions.all
    if not kept:
        yield Entry("recent.sessions", "Recent sessions", shell.window.sessions.clear, "recent", why_not="none yet")
    for session in kept:
        name = f"Recent session: {prose(session.title)} · {time_words(session.written)}"
        do = partial(shell.session_wanted.emit, session.path)
        yield Entry(f"recent.{session.path}", name, do, "recent, former session", prose(str(session.path)))


_ASSIGNED = re.compile(
    r"\s*([a-z][a-z _-]*?)\s*(?:=|:|\s)\s*(\d{1,12}(?:\.\d{1,6})?|\.\d{1,6})\s*(%?)\s*", re.IGNORECASE
)


class SamplingField(NamedTuple):
    """A field of sampling: its label, its greatest value (0: it is no number), what it does, and other words for it."""

    label: str
    most: float
    tip: str
    also: str = ""

    def check(self, value: float) -> None:
        """Raise `InputError` for a value that is impossible."""
        if not 0 <= value <= self.most:
            raise InputError(f"{self.label} is a number from 0 to {self.most:g}, not {value:g}.")


FIELDS: Mapping[str, SamplingField] = {
    "temperature": SamplingField("Temperature", 5.0, "How random the next token is: 0 always takes the most probable",
                                 "greedy, sampling, randomness, creative"),
    "top_k": SamplingField("Top-k", 1_000_000, "Choose among the k most probable tokens", "top k, sampling"),
    "top_p": SamplingField("Top-p", 1.0, "Choose among the most probable tokens that sum up to p",
                           "top p, nucleus, nucleus sampling"),
    "min_p": SamplingField("Min-p", 1.0, "Leave out tokens less probable than this part of the most probable one",
                           "min p, sampling"),
    "stop": SamplingField("Stop strings", 0, "Texts that end a sequence once it has generated one",
                          "stop at, stop sequences, end of text, eos"),
    "longest_answer": SamplingField("Longest answer", 1_000_000, "In Chat an answer ends after so many tokens at most",
                                    "max new tokens, max tokens, length limit"),
    "seed": SamplingField("Seed", 2**31 - 1, "The same seed draws the same tokens again", "random seed, reproducible"),
}  # fmt: skip


def parameter_entries(shell: Shell) -> Iterator[Entry]:
    """An entry for each field of sampling and each parameter of a cache mode, which opens it with the cursor in it."""
    for name, row in FIELDS.items():
        yield Entry(
            f"sampling.{name}", f"Sampling: {row.label}", partial(shell.window.ask_sampling, name), row.also, row.tip
        )
    cache = shell.models.status.now.cache
    for name, modes in _modes_with().items():
        parameter = _parameter(cache, name) or modes[0][1]
        also = ", ".join(word for word in (name.replace("_", " "), parameter.also) if word)
        do = partial(dialogs.ask_parameters, shell, parameter.label)
        title = f"Cache parameter: {parameter.label}"
        yield Entry(f"parameter.{name}", title, do, also, parameter.tip, why_not=_why_not(shell, name))


def _modes_with() -> dict[str, list[tuple[str, Parameter]]]:
    """The modes that have each parameter, with the parameter as each has it."""
    found: dict[str, list[tuple[str, Parameter]]] = {}
    for preset in PRESETS.values():
        for parameter in parameters_of(preset.spec):
            found.setdefault(parameter.name, []).append((preset.label, parameter))
    return found


def _parameter(cache: CacheSpec, name: str) -> Parameter | None:
    return next((parameter for parameter in parameters_of(cache) if parameter.name == name), None)


def _why_not(shell: Shell, name: str) -> str:
    """Why a parameter cannot be set now: the cache in use does not have it."""
    if why_not := reasons(shell.models)["no file"]:
        return why_not
    if _parameter(shell.models.status.now.cache, name) is not None:
        return ""
    modes = [label for label, _ in _modes_with()[name]]
    return f"choose {', '.join(modes[:3])}{' or another with it' if len(modes) > 3 else ''} first"


def refused(why: str, kind: str) -> Entry:
    """The row about a typed text that is not possible: why, and what it would have done."""
    return Entry(TYPED, why, partial(ignore, why), why_not=kind)


def typed_value(shell: Shell, text: str) -> Entry | None:
    """The typed text as a parameter and its value; None if it names none."""
    if (given := read_value(text)) is None:
        return None
    name, value = given
    label, models = name.replace("_", " "), shell.models
    try:
        if name in FIELDS:
            if why_not := reasons(models)["live model"]:
                raise InputError(f"{why_not[:1].upper()}{why_not[1:]}.")
            FIELDS[name].check(value)
            label, do = FIELDS[name].label.lower(), partial(shell.window.prompt.set_sampling, name, value)
        else:
            if why_not := _why_not(shell, name):
                raise InputError(f"The {cache_label(models.status.now.cache)} cache has no {label}: {why_not}.")
            do = partial(shell.window.top.cache.choose, _tuned(models.status.now.cache, name, value))
    except InputError as error:
        return refused(str(error), "Set")
    return Entry(TYPED, f"Set {label} to {value:g}", do)


def _tuned(cache: CacheSpec, name: str, value: float) -> CacheSpec:
    """A cache with another value. Raises `InputError` if that is impossible."""
    parameter = _parameter(cache, name)
    assert parameter is not None
    number: ParameterValue = value
    match parameter.kind:
        case "number" if value != int(value):
            raise InputError(f"{parameter.label}: give a whole number.")
        case "number":
            number = int(value)
        case "switch":
            number = bool(value)
        case "choice":
            raise InputError(f"{parameter.label}: choose it under Parameters of this cache.")
    if value > parameter.most:
        raise InputError(f"{parameter.label}: at most {parameter.most:,}.")
    given: dict[str, Any] = {name: number}
    return tuned(cache, **given)


def read_value(text: str) -> tuple[str, float] | None:
    """The name of the parameter and the value of `budget 64`, `top-p = 0.9` or `ratio 50 %`; None for another text."""
    if (found := _ASSIGNED.fullmatch(text)) is None:
        return None
    words = " ".join(re.split(r"[\s_-]+", found[1].lower()))
    value = float(found[2]) / (100 if found[3] else 1)
    known = {name: [row.label] for name, row in FIELDS.items() if row.most}
    known |= {name: modes[0][1].also.split(", ") for name, modes in _modes_with().items()}
    return next(((name, value) for name, others in known.items() if words in map(_plain, (name, *others))), None)


def _plain(words: str) -> str:
    return " ".join(re.split(r"[\s_-]+", words.lower()))


_LENSES_TYPED = {"k": "keys", "v": "values"}
# A name and its words; the order is that of an address: layer, kv head, token, channel.
NAMES = {
    "layer": "layer|l",
    "kv_head": "kv head|kv-head|kv_head|head|h",
    "position": "token|position|pos|row",
    "channel": "channel|dim|dimension",
    "step": "step|node",
}
ADDRESS = ("layer", "kv_head", "position", "channel")
_ADDRESS = re.compile(r"([kv])\s*\[([\d\s,:]*)\]?", re.IGNORECASE)
_NAMED = "|".join(f"(?P<{name}>{words})" for name, words in NAMES.items())
_PART = re.compile(rf"\s*(?:{_NAMED})\s*(?P<number>\d{{1,12}})[\s,]*", re.IGNORECASE)
WORDS = {"layer": "layer", "kv_head": "kv head", "position": "token", "channel": "channel", "step": "step"}


def typed_place(shell: Shell, text: str) -> Entry | None:
    """The typed text as a place to go to; None if it is none."""
    if (place := read_place(text)) is None:
        return None
    try:
        changes = checked(place, shell.models)
    except InputError as error:
        return refused(str(error), "Go to")
    words = place_words(place)

    def go() -> None:
        shell.models.selection.update(**changes)
        shell.window.show_place(place.keys())
        shell.models.status.notify(SELECTED + words)

    return Entry(TYPED, f"Go to {words}", go)


def read_place(text: str) -> dict[str, Any] | None:
    """The fields of the selection that a text names; None if it is no place. Nothing is checked against a model."""
    text = text.strip()
    if (address := _ADDRESS.fullmatch(text)) is not None:
        parts = [part.strip() for part in address[2].split(",") if part.strip()]
        if not parts or len(parts) > len(ADDRESS) or any(not part.isdecimal() and part != ":" for part in parts):
            return None
        numbers = {name: int(part) for name, part in zip(ADDRESS, parts, strict=False) if part != ":"}
        return {"lens": _LENSES_TYPED[address[1].lower()], **numbers}
    return dict(pairs) if (pairs := list(_named(text))) else None


def _named(text: str) -> Iterator[tuple[str, int]]:
    """The named numbers of a text; none unless the whole text consists of them."""
    pairs, place = [], 0
    while place < len(text):
        if (part := _PART.match(text, place)) is None:
            return
        pairs.append((next(name for name in NAMES if part[name]), int(part["number"])))
        place = part.end()
    yield from pairs


def place_words(place: dict[str, Any]) -> str:
    """`K of layer 2, kv head 1, token 7, channel 13`."""
    named = ", ".join(f"{WORDS[name]} {thousands(place[name])}" for name in WORDS if name in place)
    of = {"keys": "K", "values": "V"}.get(place.get("lens", ""), "")
    return f"{of} of {named}" if of else named


def checked(place: dict[str, Any], models: Models) -> dict[str, Any]:
    """The place as changes of the selection. Raises `InputError`, which says what there is, if there is none such."""
    if why_not := reasons(models)["model"]:
        raise InputError(f"{why_not[:1].upper()}{why_not[1:]}.")
    model, now, history = models.status.now.model, models.selection.now, models.history
    assert model is not None
    if (step := place.get("step")) is not None and step not in history:
        raise InputError(f"There is no step {thousands(step)}{_until(max(history.steps, default=None))}")
    geometry = model.geometry
    layer = place.get("layer", now.layer)
    if layer >= geometry.num_layers:
        raise InputError(f"There is no layer {thousands(layer)}{_until(geometry.num_layers - 1)}")
    row = geometry.layers[layer]
    head = place.get("kv_head", min(now.kv_head, max(0, row.num_kv_heads - 1)))
    if "kv_head" in place and head >= row.num_kv_heads:
        raise InputError(f"Layer {layer} has no kv head {thousands(head)}{_until(row.num_kv_heads - 1)}")
    shown = place.get("step", now.step)
    count = models.timeline.num_tokens(now.seq_id, None if shown == models.history.live else shown)
    if (position := place.get("position")) is not None and "step" not in place and position >= count:
        raise InputError(f"There is no token {thousands(position)}{_until(count - 1 if count else None)}")
    width = row.key_dim if place.get("lens", now.lens).startswith("keys") else row.value_dim
    if (channel := place.get("channel")) is not None and channel >= width:
        raise InputError(f"A row has no channel {thousands(channel)}{_until(width - 1)}")
    changes = dict(place)
    if {"layer", "kv_head", "lens", "channel"} & place.keys():
        changes |= {"layer": layer, "kv_head": head}
    return changes


def _until(last: int | None) -> str:
    return ": there is none yet." if last is None or last < 0 else f": they are 0 to {thousands(last)}."


def typed_edit(shell: Shell, text: str) -> Entry | None:
    """The typed text as an edit, if it begins with an edit's name and contains a parameter; else None."""
    verb, _, rest = text.strip().partition(" ")
    if verb not in FORMS or "=" not in rest:
        return None
    models = shell.models
    if why_not := reasons(models)["live steps"]:
        return refused(why_not.capitalize(), "Edit")
    seq_id = models.selection.now.seq_id
    num_tokens = models.timeline.num_tokens(seq_id)
    try:
        edit = parse_edit(text, seq_id, num_tokens)
        if models.status.now.model is not None:
            edit.check(models.status.now.model.geometry, num_tokens)
    except InputError as error:
        return refused(str(error), "Edit")
    return Entry(TYPED, f"Edit: {edit.describe()}", partial(shell.intents.on_edited, edit))
