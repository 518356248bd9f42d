"""Text or sound in, text out: a model together with what reads its input and writes its output."""
