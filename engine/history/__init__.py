"""What was: where every sequence stood after each step, and what makes a step reversible. No torch."""
