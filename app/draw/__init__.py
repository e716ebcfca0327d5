"""Pure functions from numbers to pictures that several panels share."""
