"""Signatures: how a result was decoded, in one line to paste into a paper, as in sacrebleu."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from npad.model import name_of
from npad.search.npad import NPAD
from npad.specs import label, name_of_kind
from npad.version import __version__


def signature(decoder: Any, model: Any) -> str:
    """Return how results are decoded, in one line.

    `npad|inner:greedy|chains:50|sigma:0.3|schedule:1/t|noise:gaussian|site:hidden|seed:0|model:…`
    with the version of npad at its end.

    Args:
        decoder: the decoder; all its hyper-parameters are written.
        model: the model, which is written by name.
    """
    parts = _npad_parts(decoder) if isinstance(decoder, NPAD) else _parts(decoder)
    return "|".join([*parts, f"model:{name_of(model)}", f"version:{__version__}"])


def _npad_parts(decoder: NPAD) -> list[str]:
    """Return NPAD's main hyper-parameters, and those others that differ from their defaults."""
    noise = decoder.noise
    main = {
        "inner": decoder.inner,
        "chains": decoder.chains,
        "sigma": noise.sigma,
        "schedule": noise.schedule,
        "noise": noise.distribution,
        "site": noise.site,
        "seed": decoder.seed,
    }
    changed = {name: value for name, value in _changed(decoder).items() if name not in main}
    if noise.relative:
        changed["relative"] = True
    return ["npad", *(f"{name}:{label(value)}" for name, value in (main | changed).items())]


def _parts(decoder: Any) -> list[str]:
    """Return a decoder's name and all its hyper-parameters."""
    shown = fields(decoder) if is_dataclass(decoder) else ()
    return [
        name_of_kind(type(decoder)),
        *(f"{field.name}:{label(getattr(decoder, field.name))}" for field in shown),
    ]


def _changed(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults."""
    changed = {}
    for field in fields(value):
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if getattr(value, field.name) != default:
            changed[field.name] = getattr(value, field.name)
    return changed
