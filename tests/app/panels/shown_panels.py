"""The panels whose approved files hold all that they show: by the name of the file, each with its size in pixels."""

from __future__ import annotations

from app.panels.attention import AttentionView
from app.panels.bench import BenchView
from app.panels.branches.view import BranchesView
from app.panels.breakpoints import BreakpointsView
from app.panels.bytes import BytesView
from app.panels.compare.steps import CompareStepsView
from app.panels.compare.view import CompareView
from app.panels.damage import DamageView
from app.panels.edits import EditsView
from app.panels.evicted import EvictedView
from app.panels.head import HeadView
from app.panels.inspector import InspectorView
from app.panels.next_token import NextTokenView
from app.panels.notes import NotesView
from app.panels.pages.view import PagesView
from app.panels.parity import ParityView
from app.panels.prompt.view import PromptPanel
from app.panels.sequences import SequencesView
from app.panels.sweep import SweepView
from app.panels.timeline import TimelineBar
from app.panels.timings import TimingsView
from app.panels.tokens import TokensPanel
from app.panels.wall.view import WallView
from app.panels.what_if import WhatIfView
from tests.app.panels.witness import PanelOfSize

PANELS: dict[str, PanelOfSize] = {
    "attention": (AttentionView, (900, 320)),
    "branches": (BranchesView, (640, 260)),
    "bytes": (BytesView, (700, 420)),
    "edits": (EditsView, (640, 260)),
    "head": (HeadView, (760, 360)),
    "inspector": (InspectorView, (420, 760)),
    "next_token": (NextTokenView, (420, 360)),
    "notes": (NotesView, (640, 260)),
    "prompt": (PromptPanel, (420, 420)),
    "sequences": (SequencesView, (760, 220)),
    "breakpoints": (BreakpointsView, (640, 260)),
    "timeline": (TimelineBar, (900, 60)),
    "timings": (TimingsView, (700, 320)),
    "tokens": (TokensPanel, (420, 260)),
    "wall": (WallView, (700, 520)),
}  # fmt: skip


MEASURED: dict[str, PanelOfSize] = {
    "what_if": (WhatIfView, (640, 340)),
    "evicted": (EvictedView, (700, 420)),
    "damage": (DamageView, (760, 480)),
    "parity": (ParityView, (760, 360)),
    "sweep": (SweepView, (900, 420)),
    "bench": (BenchView, (900, 420)),
}


IN_PAGES: dict[str, PanelOfSize] = {
    "pages": (PagesView, (640, 300)),
    "sequences_in_pages": (SequencesView, (760, 220)),
    "inspector_in_pages": (InspectorView, (420, 760)),
}


BOTH: dict[str, PanelOfSize] = {
    "compare": (CompareView, (900, 420)),
    "compared_steps": (CompareStepsView, (1100, 300)),
}
