"""Edits by hand of one sequence: the numbers of rows, what attention sees, tokens, logits; and what an edit did."""
