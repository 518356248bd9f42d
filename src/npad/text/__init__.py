"""Text: files of lines, and subword vocabularies."""
