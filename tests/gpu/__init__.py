"""What must be true on a GPU, tried on the CPU where there is none.

Where torch finds a GPU all of it runs there. Elsewhere a few cases run on the CPU and the others are skipped;
`KVLOUPE_DEVICE=cpu pytest tests/gpu` tries all of them, and `KVLOUPE_DEVICE=cuda:1` chooses a card. `pytest -m gpu` are
those that are not tried everywhere. Compiled steps, a minute each, are in the long tier.
"""
