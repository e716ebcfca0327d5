"""Bookmarks and notes as a list."""
