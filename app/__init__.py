"""The window: Qt and numpy, no torch."""
