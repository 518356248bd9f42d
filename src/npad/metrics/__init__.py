"""Quality metrics: BLEU, chrF, TER, word error rate, CIDEr-D and log-probability."""
