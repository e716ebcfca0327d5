"""The engine: models, caches, sequences, records. It imports nothing of the window."""
