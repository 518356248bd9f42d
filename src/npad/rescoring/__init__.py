"""Re-scoring: the clean log-probability of given hypotheses, each distinct prefix read once."""
