"""The window around the panels."""
