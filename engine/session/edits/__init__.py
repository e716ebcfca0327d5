"""Edits by hand of one sequence: numbers of rows, hidden rows, tokens, logit bias; and the measured effect."""
