"""Quality and cost of a decoder's outputs."""
