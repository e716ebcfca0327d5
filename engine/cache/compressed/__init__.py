"""Caches that code their rows, evict some of them, or both."""
