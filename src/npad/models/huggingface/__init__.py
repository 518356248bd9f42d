"""Models of Hugging Face Transformers. Only this package imports transformers."""
