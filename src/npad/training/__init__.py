"""Training: parallel text to a token store, a token store to a model, and nothing lost on the way."""
