"""The engine loop: commands in, events out. The only place that catches all exceptions.

torch is imported only once a command needs it, so that the window is painted first. `engine.client` decides which
thread or process runs the loop.
"""
