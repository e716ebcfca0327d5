"""MAX's KV cache configuration, with MAX's names and rules. No torch."""
