"""The paper's tables and figures on real data, and comparisons beyond the paper."""
