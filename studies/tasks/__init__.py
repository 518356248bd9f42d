"""The paper's tables on pictures and recordings: training, decoding, and the report's sections."""
