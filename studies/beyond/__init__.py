"""Experiments beyond the paper's tables, on the data and the model of `npad reproduce`."""
