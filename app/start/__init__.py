"""The command line, the settings, and what must be there before Qt is touched."""
