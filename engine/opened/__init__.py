"""Snapshots and session files that are shown without their model: their rows, steps and pictures, read on request."""
