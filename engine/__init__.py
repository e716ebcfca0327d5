"""The engine: models, caches, sequences, records. It knows nothing of windows."""
