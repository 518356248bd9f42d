"""Noise: schedules, distributions, keyed random numbers, and the noisy model."""
