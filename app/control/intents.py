"""What a person may wish for, and the commands that grant it: a class for each subject, and their sum."""

from __future__ import annotations

from app.control.analysis_intents import AnalysisIntents
from app.control.edit_intents import EditIntents
from app.control.file_intents import FileIntents
from app.control.model_intents import ModelIntents
from app.control.prompt_intents import PromptIntents
from app.control.step_intents import StepIntents
from app.control.tree_intents import TreeIntents


class Intents(PromptIntents, StepIntents, TreeIntents, EditIntents, ModelIntents, FileIntents, AnalysisIntents):
    """A slot for each wish: views connect to them, and actions call them."""
