"""Loading models, and the one attention function they run through."""

from engine.environment import prepare

prepare()  # transformers imports torchao, which talks, where it looks for ways to load coded weights
