"""Decoders from the options of a request: `{"decoder": "npad", "inner": "beam", "width": 3}`.

The names are the fields of the dataclasses, as on the command line, and the same for every route.
A request may have any decoder of the registry whose cost is within the server's limits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING
from functools import cache
from typing import Any, Literal, get_args, get_origin

from npad.constraints.kinds import GRAMMARS, Constraint, both, constraint_named
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
from npad.selectors import MBR, innermost_selector
from npad.serve.limits import Limits
from npad.specs import label, name_of_kind, spec
from npad.validation import brief, did_you_mean, ensure_integer

TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
ACTIONS = ("min_confidence", "fallback_decoder")  # what to do with doubtful outputs
LONGEST_VALUE = 100  # characters of an option's text
LISTED = 10  # hypotheses in an answer by default
JSON_TYPES = {bool: "boolean", int: "integer", float: "number"}
JSON_BOUNDS = {"minimum": "minimum", "maximum": "maximum"}
JSON_BOUNDS |= {"above": "exclusiveMinimum", "below": "exclusiveMaximum"}


@cache
def decoder_options() -> dict[str, Option]:
    """Return the options of all registered decoders by name; NPAD's come first."""
    DECODERS.load_all()
    kinds = [DECODERS.kinds["npad"], *DECODERS]
    return {option.field.name: option for kind in reversed(kinds) for option in options_of(kind)}


def option_names() -> tuple[str, ...]:
    """Return the names of all options, each once."""
    return ("decoder", *decoder_options(), "nbest", "max_length", *ACTIONS)


def decoding_for(
    model: Model[Any], options: Mapping[str, Any], limits: Limits, default: str = "npad"
) -> tuple[Decoding, int]:
    """Return how a request is decoded on a model, and how many hypotheses its answer lists.

    Args:
        model: the model, which must have what the decoder needs, such as a noise site.
        options: by name; None stands for an option that is not set. Values are texts or JSON's.
        limits: the server's.
        default: the decoder without an option `decoder`.

    Raises:
        InvalidInput: there is no such option, it does not go with the decoder, or it breaks a rule.
    """
    known = decoder_options()
    by_name = {name: option for option in known.values() for name in option.names} | known
    given: dict[str, Any] = {"max_length": min(MAX_LENGTH, limits.max_length)}
    for name, value in options.items():
        if name not in by_name and name not in option_names():
            names = ", ".join(option_names())
            rule = f"there is no option {brief(name, 60)}; there are {names}"
            raise InvalidInput(rule + did_you_mean(name, option_names()))
        if value is not None:
            given[name] = _plain(name, value, by_name.get(name))
    listed = given.pop("nbest", None)
    defaults = Defaults.of(model)
    decoding = decoding_from(given, defaults, default)
    ensure_integer("max_length", decoding.max_length, 1, limits.max_length)
    for part in filter(None, (decoding.decoder, decoding.fallback_decoder)):
        part.check(model)
        ensure_within(part, limits)
    if listed is None:
        return decoding, getattr(decoding.decoder, "nbest", LISTED)
    listed = int(listed) if isinstance(listed, str) and listed.isdecimal() else listed
    ensure_integer("nbest", listed, 1, limits.rows)
    if hasattr(decoding.decoder, "nbest"):
        decoding = decoding_from({**given, "nbest": listed}, defaults, default)
    return decoding, listed


def constraint_for(given: Mapping[str, Any] | None, limits: Limits) -> Constraint | None:
    """Return the constraint of a request: names with a text or a list of texts.

    A glossary, `terms`, has pairs instead of texts: `{"computer": "Rechner"}`.

    Raises:
        InvalidInput: there is no such constraint, or a value breaks a rule or a limit.
    """
    constraint: Constraint | None = None
    for name, value in (given or {}).items():
        if isinstance(value, dict) and all(isinstance(x, str) for x in value.values()):
            value = ["\t".join(pair) for pair in value.items()]
        texts = value if isinstance(value, list) else [value]
        most = limits.choices if name == "choices" else limits.phrases
        if not all(isinstance(text, str) for text in texts) or len(texts) > most:
            rule = f"{name} must be a text, or a list of at most {most:,} texts"
            raise InvalidInput(f"the constraint {rule}, not {brief(value, 60)}")
        longest = limits.characters if name in GRAMMARS else limits.phrase_characters
        if any(len(text) > longest for text in texts):
            raise InvalidInput(
                f"texts of the constraint {name} have {longest:,} characters at most"
            )
        constraint = both(constraint, constraint_named(name, texts))
    return constraint


def _plain(name: str, value: Any, option: Option | None) -> Any:
    """Return an option's value as Python has it; texts of parts are left to the decoders."""
    if isinstance(value, list):
        texts = [part for part in value if isinstance(part, str)]
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
    """Require a decoder that the server can afford, without patterns from clients."""
    for part in decoder.within():
        selector: Any = getattr(part, "selector", None)
        if getattr(innermost_selector(selector), "answer", None) is not None:
            raise InvalidInput("a vote's answer is a pattern, which this server does not run")
    cost = decoder.cost
    ensure_integer("budget", cost.budget, 0, limits.budget)
    compared = math.isqrt(max(0, cost.utilities - 1)) + 1 if cost.utilities else 0
    with_mbr = " with the selectors mbr and model-mbr" if compared > limits.mbr_rows else ""
    rows, most = (compared, limits.mbr_rows) if with_mbr else (cost.rows, limits.rows)
    if rows > most:
        raise InvalidInput(
            f"chains × width, or samples, must be at most {most:,}{with_mbr} on this server, "
            f"not {rows:,}"
        )


def resolved(decoding: Decoding, listed: int) -> dict[str, Any]:
    """Return every option of a request with its value; parts by name, such as power(p=0.7)."""
    decoder: Any = decoding.decoder
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
        within = _labels(inner)
        apart = all(labels.get(name, value) == value for name, value in within.items())
        if apart and within.keys() & labels.keys() <= {"seed"}:
            labels[first.name] = name_of_kind(type(inner))
            values |= within
        else:
            labels[first.name] = spec(inner)
    values |= labels | {"nbest": listed, "max_length": decoding.max_length}
    if decoding.min_confidence is not None:
        values["min_confidence"] = decoding.min_confidence
    return values


def _labels(part: Any) -> dict[str, Any]:
    """Return the options of a decoder and of its noise."""
    labels: dict[str, Any] = {}
    for option in options_of(type(part)):
        owner = part if hasattr(part, option.field.name) else getattr(part, "noise", None)
        if hasattr(owner, option.field.name):
            labels[option.field.name] = _label(getattr(owner, option.field.name))
    return labels


def _label(value: Any) -> Any:
    """Return a value that JSON can hold."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        return [_label(part) for part in value]
    # the fields of these may be functions
    return spec(value) if isinstance(value, MBR | Decoder) else label(value)


def offered(model: Model[Any]) -> dict[str, Any]:
    """Return what requests may ask of a model: decoders with their options, parts and defaults."""
    DECODERS.load_all()
    defaults = Defaults.of(model)
    values: dict[str, Any] = {}
    for name in (*reversed(DECODERS.kinds), "npad"):  # the first decoder of a name has its default
        decoding = decoding_from({"decoder": name}, defaults)
        values |= resolved(decoding, getattr(decoding.decoder, "nbest", LISTED))
    return {
        "decoders": list(DECODERS.kinds),
        "inners": [name for name, kind in DECODERS.kinds.items() if not kind().chains],
        "options": {
            name: [option.field.name for option in options_of(kind)]
            for name, kind in DECODERS.kinds.items()
        },
        "schedules": [label(kind()) for kind in SCHEDULES],
        "distributions": [label(kind()) for kind in DISTRIBUTIONS],
        "selectors": list(SELECTORS.kinds),
        "defaults": values,
    }


def option_schemas(limits: Limits) -> dict[str, dict[str, Any]]:
    """Return the JSON Schema of every option, from the decoders' fields and their metadata."""
    whole = {"type": "integer", "minimum": 1}
    decoder = {"type": "string", "default": "npad", "description": ", ".join(DECODERS.names())}
    length = min(MAX_LENGTH, limits.max_length)
    return {
        "decoder": decoder,
        **{name: _schema(option) for name, option in decoder_options().items()},
        "nbest": whole | {"maximum": limits.rows, "description": "hypotheses to return"},
        "max_length": whole
        | {"maximum": limits.max_length, "default": length}
        | {"description": "tokens of an output, its end token included"},
        "min_confidence": {"type": "number", "minimum": 0, "maximum": 100}
        | {"description": "outputs of less confidence are marked as doubtful"},
        "fallback_decoder": {"type": "string"}
        | {"description": "decodes again what is doubtful, as beam(width=20)"},
    }


def _schema(option: Option) -> dict[str, Any]:
    metadata = option.field.metadata
    default = None if option.default is MISSING else _label(option.default)
    kinds = list(get_args(option.kind)) or [option.kind]  # None comes last
    schema = {"type": JSON_TYPES.get(kinds[0], "string"), "description": metadata["help"]}
    if get_origin(option.kind) is Literal:
        schema["enum"] = kinds
    schema |= {JSON_BOUNDS[name]: metadata[name] for name in JSON_BOUNDS if name in metadata}
    return schema if default is None else schema | {"default": default}
