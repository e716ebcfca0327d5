"""The history of a session: the state of every sequence after each step, and what makes a step reversible. No torch."""
