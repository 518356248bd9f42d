"""Models of Hugging Face Transformers; no other package imports transformers."""
