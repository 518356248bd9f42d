"""What search adds to the translation models of Firefox, which are distilled for greedy search."""
