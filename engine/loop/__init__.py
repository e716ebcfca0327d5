"""The engine at work: commands in, events out, and the only place that catches everything.

No torch is imported until it runs: the window is painted first. Which thread or process runs it is `engine.client`'s
choice.
"""
