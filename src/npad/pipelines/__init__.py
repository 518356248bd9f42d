"""Text, sound or pictures in, text out: models with what reads and writes for them."""
