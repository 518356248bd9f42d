"""Terminology: what required terms do to exact match and BLEU."""
