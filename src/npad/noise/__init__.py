"""Noise: how much (schedule), of what kind (distribution), whose (keyed), and the model that has it (noisy)."""
