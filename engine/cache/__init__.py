"""Cache layouts: where K and V live."""
