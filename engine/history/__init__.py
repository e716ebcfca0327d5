"""The history of a session: the state of every sequence and page after each step, what makes a step reversible, and
what is asked of recorded steps. No torch."""
