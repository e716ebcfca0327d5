"""Widgets that read models, call draw and emit intents."""
