"""Decoders from the options of a request: `{"decoder": "npad", "inner": "beam", "width": 3}`.

The names are the fields of the dataclasses, as on the command line, and the same for every route.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from npad.distributions import DISTRIBUTIONS
from npad.errors import InvalidInput
from npad.model import Model
from npad.schedules import SCHEDULES
from npad.search.decoder import Decoder
from npad.search.defaults import Defaults
from npad.search.registry import DECODERS, SELECTORS
from npad.search.request import (
    MAX_LENGTH,
    Decoding,
    Option,
    decoding_from,
    inner_fields,
    options_of,
)
from npad.search.selected import with_selector
from npad.selectors import MBR
from npad.serve.limits import Limits
from npad.specs import label, name_of_kind, spec
from npad.validation import brief, ensure_integer

TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
LONGEST_VALUE = 100  # characters of an option's text
SHOWN = 10  # hypotheses in an answer, unless told


class Chosen(NamedTuple):
    """What a request asks of a model, besides the text."""

    decoding: Decoding
    nbest: int  # hypotheses to show

    @property
    def decoder(self) -> Decoder:
        return self.decoding.decoder

    @property
    def max_length(self) -> int:
        return self.decoding.max_length


def decoder_options() -> dict[str, Option]:
    """Return the options of all registered decoders by name; NPAD's come first."""
    kinds = [DECODERS.kinds["npad"], *DECODERS]
    return {option.field.name: option for kind in reversed(kinds) for option in options_of(kind)}


def option_names() -> tuple[str, ...]:
    """Return the names of all options, each once."""
    return ("decoder", *decoder_options(), "nbest", "max_length")


def choose(
    options: Mapping[str, Any], defaults: Defaults, limits: Limits, default: str = "npad"
) -> Chosen:
    """Return the decoder that a request's options describe.

    Args:
        options: by name; None stands for an option that is not set. Values are texts or JSON's.
        defaults: the model's.
        limits: the server's.
        default: the decoder without an option `decoder`.

    Raises:
        InvalidInput: there is no such option, it does not go with the decoder, or it breaks a rule.
    """
    known = decoder_options()
    by_name = {option.name: option for option in known.values()} | known
    given: dict[str, Any] = {}
    for name, value in options.items():
        if value is None:
            continue
        if name not in by_name and name not in option_names():
            names = ", ".join(option_names())
            raise InvalidInput(f"there is no option {brief(name, 60)}; there are {names}")
        given[name] = _plain(name, value, by_name.get(name))
    nbest = given.pop("nbest", None)
    decoding = decoding_from({"max_length": MAX_LENGTH, **given}, defaults, default)
    ensure_integer("max_length", decoding.max_length, 1, limits.max_length)
    ensure_within(decoding.decoder, limits)
    if nbest is None:
        return Chosen(decoding, getattr(decoding.decoder, "nbest", SHOWN))
    nbest = int(nbest) if isinstance(nbest, str) and nbest.isdecimal() else nbest
    ensure_integer("nbest", nbest, 1, limits.rows)
    if hasattr(decoding.decoder, "nbest"):
        decoding = decoding_from({**given, "nbest": nbest}, defaults, default)
    return Chosen(decoding, nbest)


def choose_for(
    model: Model[Any], options: Mapping[str, Any], limits: Limits, default: str = "npad"
) -> Chosen:
    """Return what a request's options ask of a model; refuse what the model does not have."""
    chosen = choose(options, Defaults.of(model), limits, default)
    chosen.decoder.check(model)
    return chosen


def _plain(name: str, value: Any, option: Option | None) -> Any:
    """Return an option's value as Python has it; texts of parts are left to the decoders."""
    if isinstance(value, list):
        texts = [str(part) for part in value if isinstance(part, str)]
        value = ",".join(texts) if value and len(texts) == len(value) else tuple(value)
    if isinstance(value, str):
        if len(value) > LONGEST_VALUE:
            rule = f"{name} must have at most {LONGEST_VALUE} characters"
            raise InvalidInput(f"{rule}, not {len(value)}")
        if option is not None and option.kind is bool:
            if value.lower() not in TRUTHS:
                raise InvalidInput(f"{name} must be true or false, not {value!r}")
            return TRUTHS[value.lower()]
    elif not isinstance(value, bool | int | float | tuple):
        raise InvalidInput(f"{name} must be a number or a text, not {brief(value, 60)}")
    return value


def ensure_within(decoder: Decoder, limits: Limits) -> None:
    """Require a decoder that the server can afford."""
    cost = decoder.cost
    if cost.budget:
        ensure_integer("budget", cost.budget, 1, limits.budget)
    compared = math.isqrt(max(0, cost.utilities - 1)) + 1 if cost.utilities else 0
    with_mbr = " with the selector mbr" if compared > limits.mbr_rows else ""
    rows, most = (compared, limits.mbr_rows) if with_mbr else (cost.rows, limits.rows)
    if rows > most:
        raise InvalidInput(
            f"chains × width, or samples, must be at most {most:,}{with_mbr} on this server, "
            f"not {rows:,}"
        )


def resolved(chosen: Chosen) -> dict[str, Any]:
    """Return every option of a choice with its value; parts by name, such as power(p=0.7)."""
    decoder: Any = chosen.decoder
    values: dict[str, Any] = {}
    selector: Any = getattr(decoder, "selector", None)
    inner = getattr(decoder, "inner", None)
    if inner is not None and decoder == with_selector(inner, selector):
        values["selector"] = _label(selector)
        decoder = inner
    values["decoder"] = name_of_kind(type(decoder))
    labels = _labels(decoder)
    for first in inner_fields(type(decoder))[:1]:
        inner = getattr(decoder, first.name)
        own = _labels(inner)
        apart = all(labels.get(name, value) == value for name, value in own.items())
        apart = apart and own.keys() & labels.keys() <= {"seed"}
        values[first.name] = labels[first.name] = (
            name_of_kind(type(inner)) if apart else spec(inner)
        )
        values |= own if apart else {}
    values |= labels
    return values | {"nbest": chosen.nbest, "max_length": chosen.max_length}


def defaults_shown(defaults: Defaults) -> dict[str, Any]:
    """Return the default of every option on a model."""
    values: dict[str, Any] = {}
    for name in (*DECODERS.kinds, "npad"):
        values |= resolved(choose({"decoder": name}, defaults, Limits()))
    return values


def inners() -> list[str]:
    """Return the names of the decoders that NPAD's chains may run."""
    return [name for name, kind in DECODERS.kinds.items() if not kind().chains]


def parts_shown() -> dict[str, list[str]]:
    """Return the names that an option such as `schedule` takes, with default fields."""
    return {
        "decoders": list(DECODERS.kinds),
        "inners": inners(),
        "schedules": [label(kind()) for kind in SCHEDULES],
        "distributions": [label(kind()) for kind in DISTRIBUTIONS],
        "selectors": list(SELECTORS.kinds),
    }


def _labels(part: Any) -> dict[str, Any]:
    """Return the options of a decoder and of its noise, but for its inner decoders."""
    labels: dict[str, Any] = {}
    noise = getattr(part, "noise", None)
    for option in options_of(type(part)):
        name = option.field.name
        if hasattr(part, name):
            labels[name] = _label(getattr(part, name))
        elif hasattr(noise, name):
            labels[name] = _label(getattr(noise, name))
    return labels


def _label(value: Any) -> Any:
    """Return a value that JSON can hold."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, MBR | Decoder):  # whose fields may be functions
        return spec(value)
    if isinstance(value, tuple):
        return [_label(part) for part in value]
    return label(value)


def default_of(option: Option) -> Any:
    """Return an option's default as JSON can hold it."""
    return _label(option.default)
