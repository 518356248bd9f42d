"""Decoders, one algorithm per file; `decoder` holds their common base class."""
