"""Comparison of two runs that are fed the same tokens."""
