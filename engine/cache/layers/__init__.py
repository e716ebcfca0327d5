"""Layers that honour transformers' cache contract."""
