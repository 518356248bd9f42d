"""Text: files of lines, and the subwords that models read and write."""
