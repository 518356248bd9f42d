"""How good the output is, and what it cost."""
