"""Loading models, and the one attention function they run through."""
