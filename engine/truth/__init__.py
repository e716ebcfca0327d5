"""What a cache mode really changes: parity, damage, what-if, regret. The live session is measured and left as it is."""
