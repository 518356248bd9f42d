"""Decoders, one algorithm a file; `decoder` has what they share."""
