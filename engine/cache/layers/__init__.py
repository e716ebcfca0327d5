"""Cache layers that the model's forward calls (transformers' cache interface), and a handle for each layer of
transformers."""
