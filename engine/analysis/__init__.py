"""What a cache mode really changes: parity, damage, what-if, regret, bench."""
