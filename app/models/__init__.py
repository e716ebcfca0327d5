"""State the views read, each with one writer."""
