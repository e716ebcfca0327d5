"""A session written down: as a journal that grows with every step, and as one readable JSON file. No torch."""
