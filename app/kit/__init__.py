"""The parts panels are made of."""
