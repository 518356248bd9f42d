"""Execution of a search: devices, memory, CUDA graphs, batches of chains; no algorithms."""
