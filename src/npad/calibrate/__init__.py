"""Which decoder for a model, a metric and a budget? Successive halving, and its report."""
