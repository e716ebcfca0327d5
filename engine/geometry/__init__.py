"""The dimensions of a model's cache, layer by layer, and the bytes that follow from them. No torch."""
