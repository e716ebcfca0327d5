"""Caches that code their rows, drop some of them, or both."""
