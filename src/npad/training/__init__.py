"""Training: from parallel text to a token store, and from a token store to a model."""
