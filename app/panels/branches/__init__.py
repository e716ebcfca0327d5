"""The history tree: every branch with its text, where they part, and what was done on the way."""
