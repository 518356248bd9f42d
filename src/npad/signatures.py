"""How a result was made, in one line to paste into a paper, as sacrebleu's signatures are."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from npad.model import name_of
from npad.search.npad import NPAD
from npad.specs import kebab, label
from npad.version import __version__


def signature(decoder: Any, model: Any) -> str:
    """`npad|inner:greedy|chains:50|sigma:0.3|schedule:1/t|noise:gaussian|site:hidden|seed:0|model:…|version:…`."""
    parts = _npad(decoder) if isinstance(decoder, NPAD) else _plain(decoder)
    return "|".join([*parts, f"model:{name_of(model)}", f"version:{__version__}"])


def _npad(decoder: NPAD) -> list[str]:
    """What every NPAD result must tell, and then whatever differs from the default."""
    noise = decoder.noise
    always = {
        "inner": decoder.inner,
        "chains": decoder.chains,
        "sigma": noise.sigma,
        "schedule": noise.schedule,
        "noise": noise.distribution,
        "site": noise.site,
        "seed": decoder.seed,
    }
    rest = {name: value for name, value in _changed(decoder).items() if name not in always}
    if noise.relative:
        rest["relative"] = True
    return ["npad", *(f"{name}:{label(value)}" for name, value in (always | rest).items())]


def _plain(decoder: Any) -> list[str]:
    shown = fields(decoder) if is_dataclass(decoder) else ()
    return [
        kebab(type(decoder)),
        *(f"{field.name}:{label(getattr(decoder, field.name))}" for field in shown),
    ]


def _changed(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that are not at their default."""
    changed = {}
    for field in fields(value):
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if getattr(value, field.name) != default:
            changed[field.name] = getattr(value, field.name)
    return changed
