"""Does an actor make greedy search as good as a beam? Steps, rows, aims and report."""
