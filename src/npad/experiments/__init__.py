"""The paper's tables and figures on real data, and experiments beyond the paper."""
