"""The messages between window and engine, and what they carry. No torch."""
