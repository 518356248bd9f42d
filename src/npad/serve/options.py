"""Decoders from the options of a request: `{"decoder": "npad", "inner": "beam", "width": 3}`.

The names are the fields of the dataclasses, as on the command line, and the same for every route.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, replace
from functools import cache
from typing import Any, NamedTuple, get_type_hints

from npad.distributions import DISTRIBUTIONS
from npad.errors import InvalidInput
from npad.model import Model
from npad.noise.noisy import Noise
from npad.schedules import SCHEDULES
from npad.search.decoder import Decoder, has_candidates
from npad.search.defaults import Defaults
from npad.search.exact import Exact
from npad.search.npad import NPAD
from npad.search.registry import DECODERS, SELECTORS
from npad.search.selected import Selected
from npad.selectors import MBR, MostProbable, Selector, innermost_selector
from npad.serve.limits import Limits
from npad.specs import label, name_of_kind, parse_value
from npad.validation import brief, ensure_integer

OFFERED = ("greedy", "beam", "sampling", "diverse", "npad", "exact")
INNER = ("greedy", "beam", "sampling", "diverse")
ALIASES = {"noise": "distribution"}  # the command line's name
TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
LONGEST_VALUE = 100  # characters of an option's text
SHOWN = 10  # hypotheses in an answer, unless told


class Chosen(NamedTuple):
    """What a request asks of a model, besides the text."""

    decoder: Decoder
    max_length: int
    nbest: int


@cache
def plain_fields(kind: Any) -> Mapping[str, tuple[Field[Any], Any]]:
    """Return the fields of a decoder that are options, and their types, by name."""
    types = get_type_hints(kind)  # takes a millisecond
    return {
        field.name: (field, types[field.name])
        for field in fields(kind)
        if "help" in field.metadata and types[field.name] not in (Decoder, Noise)
    }


@cache
def option_names() -> tuple[str, ...]:
    """Return the names of all options, each once."""
    names = ["decoder", *plain_fields(NPAD), *plain_fields(Noise), "inner"]
    names += [name for kind in OFFERED for name in plain_fields(DECODERS.kinds[kind])]
    return tuple(dict.fromkeys([*names, "selector", "nbest", "max_length"]))


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
    given: dict[str, Any] = {}
    for name, value in options.items():
        if value is not None:
            given[ALIASES.get(name, name)] = value
    unknown = [name for name in given if name not in option_names()]
    if unknown:
        raise InvalidInput(
            f"there is no option {brief(unknown[0], 60)}; there are {', '.join(option_names())}"
        )
    max_length = _whole("max_length", given.pop("max_length", 200))
    ensure_integer("max_length", max_length, 1, limits.max_length)
    name = str(given.pop("decoder", default))
    if name not in OFFERED:
        rule = f"decoder must be one of {', '.join(OFFERED)}"
        raise InvalidInput(f"{rule}, not {brief(name, 60)}")
    nbest = given.pop("nbest", None)
    if nbest is not None:
        nbest = _whole("nbest", nbest)
        ensure_integer("nbest", nbest, 1, limits.rows)
    decoder = _build(name, given, defaults, nbest)
    if given:
        raise InvalidInput(f"{next(iter(given))} does not go with the decoder {name}")
    _ensure_within(decoder, limits)
    if nbest is None:
        nbest = getattr(decoder, "nbest", SHOWN)
    return Chosen(decoder, max_length, nbest)


def choose_for(
    model: Model[Any], options: Mapping[str, Any], limits: Limits, default: str = "npad"
) -> Chosen:
    """Return what a request's options ask of a model; refuse a noise site that it does not have."""
    chosen = choose(options, Defaults.of(model), limits, default)
    if isinstance(chosen.decoder, NPAD):
        chosen.decoder.noise.check(model)
    return chosen


def _build(name: str, given: dict[str, Any], defaults: Defaults, nbest: int | None) -> Decoder:
    """Build a decoder, and consume its options."""
    kind: Any = DECODERS.kinds[name]
    selector = defaults.selector
    if has_candidates(kind) and "selector" in given:
        selector = _parsed("selector", given.pop("selector"), Selector)
    if kind is NPAD:
        inner = str(given.pop("inner", "greedy"))
        if inner not in INNER:
            rule = f"inner must be one of {', '.join(INNER)}"
            raise InvalidInput(f"{rule}, not {brief(inner, 60)}")
        noise = replace(defaults.noise, **_values(Noise, given))
        seed = given.get("seed")
        values = _values(NPAD, given)
        inner_kind: Any = DECODERS.kinds[inner]
        if seed is not None and "seed" in plain_fields(inner_kind):
            given["seed"] = seed
        inner_decoder = inner_kind(**_values(inner_kind, given))
        return NPAD(**{**values, "inner": inner_decoder, "noise": noise, "selector": selector})
    values = _values(kind, given)
    if not isinstance(selector, MostProbable) and has_candidates(kind):
        return Selected(kind(**values), selector)
    if nbest is not None and hasattr(kind, "nbest"):
        values["nbest"] = nbest
    decoder: Decoder = kind(**values)
    return decoder


def _values(kind: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a class's fields, taken out of the options."""
    return {
        name: _parsed(name, given.pop(name), annotation)
        for name, (_, annotation) in plain_fields(kind).items()
        if name in given
    }


def _parsed(name: str, value: Any, annotation: Any) -> Any:
    """Return an option's value from its text, or as JSON gave it; the class checks its range."""
    if isinstance(value, list):
        return tuple(value)
    if not isinstance(value, str):
        if isinstance(value, dict) or not isinstance(value, bool | int | float):
            raise InvalidInput(f"{name} must be a number or a text, not {brief(value, 60)}")
        return value
    if len(value) > LONGEST_VALUE:
        raise InvalidInput(f"{name} must have at most {LONGEST_VALUE} characters, not {len(value)}")
    if annotation is bool:
        if value.lower() not in TRUTHS:
            raise InvalidInput(f"{name} must be true or false, not {value!r}")
        return TRUTHS[value.lower()]
    return parse_value(name, value, annotation)


def _whole(name: str, value: Any) -> int:
    """Return a whole number from its text or from JSON."""
    parsed: int = _parsed(name, value, int)
    return parsed


def _ensure_within(decoder: Decoder, limits: Limits) -> None:
    """Require a decoder that the server can afford."""
    core: Any = decoder.inner if isinstance(decoder, Selected) else decoder
    if isinstance(core, Exact):
        ensure_integer("budget", core.budget, 1, limits.budget)
    selector = getattr(decoder, "selector", None)
    by_mbr = selector is not None and isinstance(innermost_selector(selector), MBR)
    most = min(limits.rows, limits.mbr_rows) if by_mbr else limits.rows
    if core.rows > most:
        with_mbr = " with the selector mbr" if by_mbr else ""
        raise InvalidInput(
            f"chains × width, or samples, must be at most {most:,}{with_mbr} on this server, "
            f"not {core.rows:,}"
        )


def resolved(chosen: Chosen) -> dict[str, Any]:
    """Return every option of a choice with its value; parts by name, such as power(p=0.7)."""
    decoder: Any = chosen.decoder
    values: dict[str, Any] = {}
    if isinstance(decoder, Selected):
        values["selector"] = _label(decoder.selector)
        decoder = decoder.inner
    values["decoder"] = name_of_kind(type(decoder))
    if isinstance(decoder, NPAD):
        values["inner"] = name_of_kind(type(decoder.inner))
        values |= _labels(decoder.inner) | _labels(decoder.noise)
    values |= _labels(decoder)
    return values | {"nbest": chosen.nbest, "max_length": chosen.max_length}


def defaults_shown(defaults: Defaults) -> dict[str, Any]:
    """Return the default of every option on a model."""
    values: dict[str, Any] = {}
    for name in (*(name for name in OFFERED if name != "npad"), "npad"):
        values |= resolved(choose({"decoder": name}, defaults, Limits()))
    return values


def parts_shown() -> dict[str, list[str]]:
    """Return the names that an option such as `schedule` takes, with default fields."""
    return {
        "decoders": list(OFFERED),
        "inners": list(INNER),
        "schedules": [label(kind()) for kind in SCHEDULES],
        "distributions": [label(kind()) for kind in DISTRIBUTIONS],
        "selectors": list(SELECTORS.kinds),
    }


def _labels(part: Any) -> dict[str, Any]:
    kind: Any = type(part)
    return {name: _label(getattr(part, name)) for name in plain_fields(kind)}


def _label(value: Any) -> Any:
    """Return a value that JSON can hold."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, MBR):  # one of its fields is a function
        return name_of_kind(MBR)
    return list(value) if isinstance(value, tuple) else label(value)


def default_of(field: Field[Any]) -> Any:
    """Return a field's default as JSON can hold it, or None."""
    if field.default is not MISSING:
        return _label(field.default)
    return None if field.default_factory is MISSING else _label(field.default_factory())
