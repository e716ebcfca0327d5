"""Servers that serve now: the KV events that they publish, folded into prefix trees, and what follows from them. No
torch, no Qt.

vLLM, SGLang and TensorRT-LLM publish the same events: `schema` decodes them, `tree` folds those of one rank, `server`
all that come from a server, `explain` says why a prompt is not reused, `source` listens, `recording` keeps."""
