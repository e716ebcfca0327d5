"""Predicts how many bytes a cache takes and how many tokens fit into it, before anything runs. No torch."""
