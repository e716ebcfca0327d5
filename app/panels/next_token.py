"""The panel of candidates for the next token: their probabilities from the model and after the sampler's filters."""

from __future__ import annotations

import math
import re
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace
from PySide6.QtCore import QPoint, QPointF, Qt, Signal
from PySide6.QtGui import QAction, QKeyEvent, QResizeEvent
from PySide6.QtWidgets import QLineEdit, QMenu, QWidget

from app.draw.format import decimal, percent, probable, thousands, token_text
from app.kit.bars import Bar, BarRow, BarRows, BarTable
from app.kit.provenance import Provenance, shown_part, shown_record, source_of
from app.kit.reader import EDITS, SELECTION, STATUS, STEPS
from app.kit.theme import FIXED_SIZE, font_fixed
from app.kit.view import View
from app.kit.widgets import ElidedLabel, column, connect_all, push_button, row
from app.models import Models
from app.models.sequence_status import (
    FULL,
    after_edit,
    current_bias,
    num_typed_ahead,
    selected_info,
    why_ended,
    with_ban,
    with_only,
    without,
)
from engine.spec.edit import BiasLogits
from engine.spec.sampling import SamplingParams
from engine.wire.commands import BeginBranch
from engine.wire.records import SequenceStep, has_chosen

Which = Literal["raw", "sampled"]
_ID = re.compile(r"#(\d{1,9})")
_MOST = 2**63 - 1  # the largest seed


class ContinuationLine(QWidget):
    """Signals: `wants(BeginBranch)`, and `left()` with Esc."""

    wants = Signal(object)
    left = Signal()

    def __init__(self, models: Models) -> None:
        super().__init__()
        self._models = models
        self.edit = QLineEdit()
        self.edit.setFont(font_fixed(11.5))
        self.edit.setPlaceholderText("another text, or #id")
        self.edit.setMaxLength(4000)
        self.edit.setAccessibleName("What comes next instead: a text, or a token id behind #")
        self.edit.returnPressed.connect(self._on_typed)
        self.seed = push_button("Other seed", self._on_seed)
        row((self.edit, 1), self.seed, on=self)

    def show_state(self, step: int | None) -> None:
        """Adapt the tool tips to the step it starts from (None: the live one), and enable *Other seed* unless sampling
        is greedy."""
        where = "here" if step is None else f"step {thousands(step)}, as a branch: what there is stays"
        self.edit.setToolTip(f"Enter: goes on with this text from {where}.\nA # and a number is the token of that id")
        sampling = self._sampling
        is_greedy = sampling is None or sampling.is_greedy
        self.seed.setEnabled(not is_greedy)
        if sampling is None or is_greedy:
            self.seed.setToolTip("Greedy decoding draws nothing: choose a temperature beside the prompt first")
        else:
            self.seed.setToolTip(f"Draw once more, with seed {_next_seed(sampling)}, from {where}")

    @property
    def _sampling(self) -> SamplingParams | None:
        info = selected_info(self._models)
        return info.sampling if info is not None else None

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.text() == "\x1b":
            self.edit.clear()
            self.left.emit()
        else:
            super().keyPressEvent(event)

    def _on_typed(self) -> None:
        text = self.edit.text()
        if not text:
            return
        self.edit.clear()
        if (found := _ID.fullmatch(text)) is not None:
            self.wants.emit(BeginBranch(self._models.selection.now.seq_id, None, (int(found[1]),)))
        else:
            self.wants.emit(BeginBranch(self._models.selection.now.seq_id, None, text=text))

    def _on_seed(self) -> None:
        if (sampling := self._sampling) is not None:
            drawn = replace(sampling, seed=_next_seed(sampling))
            self.wants.emit(BeginBranch(self._models.selection.now.seq_id, None, sampling=drawn))


def _next_seed(sampling: SamplingParams) -> int:
    return min(sampling.seed + 1, _MOST)


_ROOM_FOR_CONTINUATION = 200  # pixels of the panel's height
_SUMMARY_TIP = (
    "entropy: how open the choice is, 0 where one token is certain\n"
    "as open as: between so many equally likely tokens the choice would be as open (perplexity, e to the entropy)\n"
    "rest: the probability of all tokens that are not listed"
)
_ANOTHER = "Another text, a token by its #id, or another seed"
TAKE = "click: take this token instead"
BRANCH = "click: a branch begins here with this token; what there is stays"


class NextTokenState(Struct, frozen=True):
    """The candidates as bars, and a summary in full and in short; the step that last computed the sequence; the edit
    after which the candidates were measured, if any; why none of them can be taken, or empty; whether another text can
    be typed; the step shown; and the sequence's sampling."""

    rows: tuple[BarRow, ...]
    summary: str
    brief: str
    computed_in: int
    edited_at: int | None
    refusal: str
    can_type: bool
    viewed: int | None
    sampling: SamplingParams | None


class NextTokenView(View[NextTokenState]):
    """Signals: `biased(BiasLogits)`, change the logits from now on; `bias_wanted(token_id)`, ask for the amount of a
    bias. It `wants` a `BeginBranch`: take another token instead, continue with a text, or with another draw. If an
    earlier step is shown, a new branch begins there."""

    name = "next_token"
    follows = (SELECTION, STATUS, STEPS, EDITS)
    needs = "statistics"
    choices = (
        ("raw", "raw", "What the model says, before temperature and filters"),
        ("sampled", "sampled", "What the sampler draws from"),
    )

    biased = Signal(object)
    bias_wanted = Signal(int)

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self.candidates = BarRows("Most probable next tokens", 17, 32, FIXED_SIZE, name_share=0.34)
        self.candidates.setMinimumSize(1, 17)  # a candidate is seen in the smallest window
        self.summary = ElidedLabel(role="muted")
        self._mark_other()
        self.continuation = ContinuationLine(models)
        self.other = push_button("Other…", self.begin_continuation, f"{_ANOTHER}  (Ctrl+Shift+T)")
        self.set_body(column((self.candidates, 1), self.continuation, row((self.summary, 1), self.other), spacing=4))
        self.candidates.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        connect_all(
            (self.candidates.picked, self._on_taken),
            (self.candidates.customContextMenuRequested, self._on_list_menu),
            (self.continuation.wants, self.wants),
            (self.continuation.left, self._fit_continuation),
        )
        self.follow(models)

    def choose(self, choice: str) -> None:
        super().choose(choice)
        self._mark_other()

    def _mark_other(self) -> None:
        """The line at a bar is the probability on the other scale: before the name of that stands such a line."""
        here = ("", ": the bars"), ("| ", ": the line at each bar, where it differs")
        marks = {key: here[key != self.choice] for key, _, _ in self.choices}
        self.set_choices([(key, marks[key][0] + text, tip + marks[key][1]) for key, text, tip in self.choices])

    def _on_taken(self, token_id: int) -> None:
        if self.state is not None and not self.state.refusal:
            self.wants.emit(BeginBranch(self._models.selection.now.seq_id, None, (token_id,)))

    def _on_list_menu(self, place: QPoint) -> None:
        """Open the menu of what can be done with a candidate from now on."""
        token_id, state = self.candidates.item_at(QPointF(place)), self.state
        if state is None or self._models.status.has_file or self._models.selection.now.step is not None:
            return
        name = next((f"“{row.name[2:]}”".replace("&", "&&") for row in state.rows if row.key == token_id), "")
        if not isinstance(token_id, int) or not name:
            return
        seq_id = self._models.selection.now.seq_id
        now = current_bias(self._models, seq_id)
        menu = QMenu(self)
        menu.setObjectName("candidate")
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        for text, wanted, is_possible in (
            (f"Take {name} now", BeginBranch(seq_id, None, (token_id,)), not state.refusal),
            (f"Never choose {name}", with_ban(now, (token_id,)), token_id not in now.banned),
            (f"Choose nothing but {name}", with_only(now, (token_id,)), now.only != (token_id,)),
            (f"Add to the logit of {name}…", token_id, True),
            (f"Leave {name} to the model again", without(now, token_id), without(now, token_id) != now),
            ("End every bias", BiasLogits(seq_id), now != BiasLogits(seq_id)),
        ):
            entry = menu.addAction(text)
            entry.setData(wanted)
            entry.setEnabled(is_possible)
        menu.triggered.connect(self._on_wanted)
        menu.popup(self.candidates.mapToGlobal(place))

    def _on_wanted(self, entry: QAction) -> None:
        match entry.data():
            case BeginBranch() as branch:
                self.wants.emit(branch)
            case BiasLogits() as bias:
                self.biased.emit(bias)
            case token_id:
                self.bias_wanted.emit(token_id)

    # ---- painting ------------------------------------------------------------------------------------------------

    def read(self) -> NextTokenState | str:
        found, now = shown_part(self._models), self._models.selection.now
        if found is None:
            if self._models.timeline.at(now.step) is None:
                if not self.is_measured:
                    return "The most probable next tokens are not measured now: steps are taken without them."
                return f"The most probable next tokens appear here with the first step: {self.how_to_begin}."
            return f"Sequence {now.seq_id} was not computed in this step: view another one."
        record, part = found
        edited_at = None
        if (edited := after_edit(self._models, part, record.step)) is not None:
            edited_at, part = edited
        if not part.candidates:
            if part.stop is not None:
                return f"Nothing follows: {part.stop}."
            if self._models.status.has_file:
                return "The file does not say what could have followed."
            if part.sampled is not None:
                return "What else could have come was not measured in this step."
            return "The prompt is still being read; choices follow its last token."
        which: Which = "sampled" if self.choice == "sampled" else "raw"
        info = selected_info(self._models)
        is_full = info is not None and info.stop in FULL and now.step is None
        num_typed = num_typed_ahead(self._models)
        refusal = self._models.status.why_no_engine or (why_ended(info) if info is not None and is_full else "")
        return NextTokenState(
            rows=candidate_rows(part, which, refusal or (TAKE if now.step is None else BRANCH)),
            summary=_summary(part, which, num_typed, is_brief=False),
            brief=_summary(part, which, num_typed, is_brief=True),
            computed_in=record.step,
            edited_at=edited_at,
            refusal=refusal,
            can_type=not refusal and not self._models.status.has_file,
            viewed=now.step,
            sampling=info.sampling if info is not None else None,
        )

    def provenance(self, state: NextTokenState) -> Provenance:
        if state.edited_at is not None:
            step = thousands(state.edited_at)
            kind = "recorded" if state.viewed is None else "past"
            return Provenance(
                "after the edit", kind, f"measured at step {step}: what follows on the edited cache", "edited"
            )
        shown = shown_record(self._models)
        return source_of(
            self._models, "recorded", "", shown.step if shown is not None else None, computed_in=state.computed_in
        )

    def show_state(self, state: NextTokenState) -> None:
        self.summary.setText(state.summary, state.brief, _SUMMARY_TIP)
        self.candidates.show_table(BarTable(rows=state.rows))
        for widget in (self.continuation, self.other):
            widget.setEnabled(state.can_type)
        self.continuation.show_state(state.viewed)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit_continuation()

    def _fit_continuation(self) -> None:
        """Hide the field for typing in a low panel, which has space only for the candidates, until the user wants
        it."""
        has_continuation = self.height() >= _ROOM_FOR_CONTINUATION or self.continuation.edit.hasFocus()
        self.continuation.setVisible(has_continuation)
        self.other.setVisible(not has_continuation)

    def add_to_menu(self, menu: QMenu) -> None:
        """Offer the actions of the field for typing, because a low panel hides it."""
        menu.addAction("Type what comes next…", self.begin_continuation).setEnabled(self.continuation.isEnabled())
        another = menu.addAction("Draw with another seed", self.continuation.seed.click)
        another.setEnabled(self.continuation.isEnabled() and self.continuation.seed.isEnabled())
        menu.addSeparator()

    def begin_continuation(self) -> None:
        """Show the field for typing what comes next, with the focus in it."""
        self.continuation.show()
        self.other.hide()
        self.continuation.edit.setFocus()
        self.continuation.edit.selectAll()


def candidate_rows(part: SequenceStep, which: Which, what: str) -> tuple[BarRow, ...]:
    """The candidates in the engine's order, most probable first. The chosen one has a mark, those that a sampling
    filter removed are muted; the line at a bar is its probability on the other scale; `what` a click does."""
    rows = []
    for one in part.candidates:
        raw, sampled = probable(one.prob), probable(one.sampled_prob)
        share, other = (raw, sampled) if which == "raw" else (sampled, raw)
        is_chosen, is_out = has_chosen(part) and one.token_id == part.sampled, one.sampled_prob == 0
        number = percent(one.prob if which == "raw" else one.sampled_prob)
        words = [
            f"{token_text(one.text)}  id {one.token_id}  {percent(share)} here, {percent(other)} on the other scale",
            *(["removed by the sampler's filters"] if is_out else []),
            what,
        ]
        bar = Bar(share, number, "accent" if is_chosen else "page_used", is_out, other)
        name, tip = f"{'▸' if is_chosen else ' '} {token_text(one.text)}", "\n".join(words)
        rows.append(BarRow(name, (bar,), tip, one.token_id, is_bold=is_chosen, is_marked=not is_out))
    return tuple(rows)


def rest(part: SequenceStep, which: Which) -> float:
    """The probability of all tokens that are not listed."""
    listed = sum(c.prob if which == "raw" else c.sampled_prob for c in part.candidates)
    return max(0.0, 1.0 - listed)


def _summary(part: SequenceStep, which: Which, num_typed: int, *, is_brief: bool) -> str:
    """Return `entropy 1.17 nats · as open as 3.2 equal choices · rest 0.5 %`, after the number of typed tokens that are
    still to be computed. The entropy is that of the raw distribution, which is said beside the sampled one."""
    words = []
    if num_typed:
        words.append(f"{thousands(num_typed)} typed token{'s' * (num_typed > 1)} to come")
    if part.entropy is not None:
        nats = f"{decimal(part.entropy)} nats"
        choices = decimal(math.exp(min(part.entropy, 30)), 1)
        raw = "" if which == "raw" else "raw "
        words += [raw + nats] if is_brief else [f"{raw}entropy {nats}", f"as open as {choices} equal choices"]
    words.append(f"rest {percent(rest(part, which))}")
    if part.forced:
        words.append("forced")
    return " · ".join(words)
