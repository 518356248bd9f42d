"""Decoders of a Whisper model on noisy strings of digits: decoding, findings and report."""
