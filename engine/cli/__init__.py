"""The headless twin: one file per sub-command."""
