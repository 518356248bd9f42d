"""The paper's tables and figures on real data."""
