"""The paper's translation model: a bidirectional encoder and a conditional GRU with attention."""
