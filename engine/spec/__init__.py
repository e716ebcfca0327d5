"""What a session is made from: a model, a cache, a way to sample. Frozen and checked. No torch."""
