"""Saved sessions: a journal that grows with every step, and one readable JSON file. No torch."""
