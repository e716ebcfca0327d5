"""Comparison of two runs that are given the same tokens."""
