"""What inference, training and reports write with: atomic files, JSON lines, model folders."""
