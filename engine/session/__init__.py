"""The session: one model, its sequences, their caches and their history."""
