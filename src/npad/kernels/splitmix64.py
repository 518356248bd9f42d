"""The constants of SplitMix64 (Steele, Lea & Flood, 2014), shared by torch code and kernels."""

from __future__ import annotations


def signed(value: int) -> int:
    """Return a 64-bit pattern as the signed integer that torch stores."""
    value = int(value) & ((1 << 64) - 1)  # int(): a NumPy integer overflows with the mask
    return value - (1 << 64) if value >> 63 else value


GOLDEN = signed(0x9E3779B97F4A7C15)
FIRST, SECOND = signed(0xBF58476D1CE4E5B9), signed(0x94D049BB133111EB)
