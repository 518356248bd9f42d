"""A decoder as the options of the command line that make it: `--decoder beam --width 5`."""

from __future__ import annotations

import shlex
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from npad.cli.decoder_choice import NPAD_DEFAULTS
from npad.cli.decoder_fields import SELECTOR, DecoderOption
from npad.noise.noisy import Noise
from npad.search.decoder import Decoder, has_candidates
from npad.search.defaults import Defaults
from npad.search.npad import NPAD
from npad.search.selected import Selected
from npad.selectors import MostProbable
from npad.specs import label, name_of_kind


def options_for(decoder: Decoder, defaults: Defaults = NPAD_DEFAULTS) -> str:
    """Return the options that make a decoder: NPAD's σ₀, and all that are not the defaults.

    `make_decoder` with the same defaults, which are the model's, makes the same decoder of them.
    """
    chosen: Any = decoder.inner if isinstance(decoder, Selected) else decoder
    words = ["--decoder", name_of_kind(type(chosen))]
    if isinstance(chosen, NPAD):
        plain = NPAD(noise=defaults.noise, chains=defaults.chains, selector=defaults.selector)
        words += ["--sigma", label(chosen.noise.sigma)]
        words += _changed(chosen, plain, "noise") + _changed(chosen.noise, plain.noise, "sigma")
        return shlex.join(words)
    words += _changed(chosen, type(chosen)())
    selector = decoder.selector if isinstance(decoder, Selected) else MostProbable()
    if has_candidates(type(chosen)) and selector != defaults.selector:
        words += [SELECTOR.flag, spec(selector)]
    return shlex.join(words)


def spec(value: Any) -> str:
    """Return a part by name, with those of its fields that are not the defaults."""
    if isinstance(value, type) or not is_dataclass(value):
        return label(value)
    changed = [
        f"{field.name}={spec(getattr(value, field.name))}"
        for field in fields(value)
        if getattr(value, field.name) != _default(field)
    ]
    return name_of_kind(type(value)) + (f"({','.join(changed)})" if changed else "")


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _changed(value: Decoder | Noise, default: Decoder | Noise, *besides: str) -> list[str]:
    """Return the options of the fields that differ, but for some."""
    words: list[str] = []
    for field in fields(value):  # type: ignore[arg-type]
        chosen = getattr(value, field.name)
        if field.name in besides or "help" not in field.metadata:
            continue
        if chosen == getattr(default, field.name):
            continue
        option = DecoderOption(field, type(chosen))
        if isinstance(chosen, bool):
            words.append(option.flag if chosen else f"--no-{option.flag[2:]}")
        else:
            words += [next(iter(field.metadata.get("flags", ())), option.flag), spec(chosen)]
    return words
