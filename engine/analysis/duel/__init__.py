"""Two runs side by side, on the same tokens."""
