"""Snapshots: the cache of a sequence in one file, written, opened, checked, compared, and gone on from."""
