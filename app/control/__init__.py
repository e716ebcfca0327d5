"""Intents in, commands out; events in, models written."""
