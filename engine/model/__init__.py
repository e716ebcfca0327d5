"""Loading models, and the attention function that all of them run through."""

from engine.startup import prepare

prepare()  # before transformers is imported: it imports torchao, whose log messages this turns off
