"""Signatures: how a result was decoded, in one line to paste into a paper, as in sacrebleu."""

from __future__ import annotations

from typing import Any

from npad.model import name_of
from npad.search.decoder import Decoder
from npad.specs import label
from npad.version import __version__


def signature(decoder: Any, model: Any, constraint: object = None) -> str:
    """Return how results are decoded, in one line.

    `npad|inner:greedy|chains:50|sigma:0.3|schedule:1/t|noise:gaussian|site:hidden|seed:0|model:…`
    with the version of npad at its end.

    Args:
        decoder: the decoder; all its hyper-parameters are written.
        model: the model, which is written by name.
        constraint: what outputs must satisfy, if the model is not constrained itself.
    """
    parts = decoder.signature if isinstance(decoder, Decoder) else [label(decoder)]
    constraint = constraint or getattr(getattr(model, "capabilities", None), "constraint", "")
    parts = [*parts, f"constraint:{constraint}"] if constraint else parts
    return "|".join([*parts, f"model:{name_of(model)}", f"version:{__version__}"])
