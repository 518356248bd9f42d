"""How a search is executed: devices, memory, CUDA graphs, batches of chains. No algorithm is here."""
