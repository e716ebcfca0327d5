"""Exported caches."""
