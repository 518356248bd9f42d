"""The paper's tables and figures on real data, and what lies beyond them."""
