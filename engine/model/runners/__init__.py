"""The runners: different ways to compute a forward, from transformers' own to recorded steps."""
