"""Files that are read whole within a limit, and written whole or not at all. No torch."""
