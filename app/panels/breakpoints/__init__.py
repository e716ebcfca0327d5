"""Conditions that halt a run, and a search of past steps for where one held."""
