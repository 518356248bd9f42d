"""Decoders from the options of the command line: `-d npad --inner beam --width 5`."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields, replace
from typing import Any, cast, get_type_hints

from npad.cli.decoder_fields import SELECTOR, DecoderOption, flag_of, option_names, options_of
from npad.errors import InvalidInput
from npad.noise.noisy import Noise
from npad.search.decoder import Decoder, has_candidates
from npad.search.defaults import Defaults
from npad.search.mbr_decoding import MBRDecoding
from npad.search.npad import NPAD
from npad.search.registry import DECODERS
from npad.search.selected import Selected
from npad.selectors import MostProbable, Selector
from npad.specs import label, name_of_kind, split_commas

NPAD_DEFAULTS = Defaults()  # of npad's own models


def make_decoder(
    name: str, settings: dict[str, Any], defaults: Defaults = NPAD_DEFAULTS
) -> Decoder:
    """Return the decoder that --decoder and its options describe.

    Args:
        name: a registered name, or one with its fields in brackets.
        settings: the values of the options that are set, and `nbest`, the outputs per text.
        defaults: the model's, for what is left open.

    Raises:
        InvalidInput: an option does not go with the decoder, or breaks a rule.
    """
    if "(" in name:
        decoder: Any = DECODERS.parse(name)
        selector = defaults.selector
        if "selector" in settings and SELECTOR in options_of(type(decoder)):
            settings = dict(settings)
            selector = SELECTOR.parse(settings.pop("selector"))
        _refuse_beside_fields(set(settings) - {"nbest"}, f"--decoder {name}")
        nbest = settings.get("nbest", 1)
        if nbest > 1 and not decoder.returns_several:
            if not hasattr(decoder, "nbest"):
                _refuse({"nbest"}, f"--decoder {name}", option_names(type(decoder)))
            decoder = replace(decoder, nbest=nbest)
        return _with_defaults(decoder, name, replace(defaults, selector=selector))
    return _build(name, dict(settings), f"--decoder {name}", defaults, outermost=True)


def _selected(decoder: Decoder, selector: Selector) -> Decoder:
    """Let a selector rank a decoder's candidates, unless that is the decoder's own order."""
    plain = isinstance(decoder, Selected | MBRDecoding) or isinstance(selector, MostProbable)
    return decoder if plain or not has_candidates(type(decoder)) else Selected(decoder, selector)


def _with_defaults(decoder: Decoder, spec: str, defaults: Defaults) -> Decoder:
    """Return a decoder that is given with its fields, with the defaults of those not written."""
    if not isinstance(decoder, NPAD):
        return _selected(decoder, defaults.selector)
    inside = spec.strip().partition("(")[2].removesuffix(")")
    written = {field.partition("=")[0].strip() for field in split_commas(inside)}
    values = _npad_defaults(defaults) | {"noise": defaults.noise}
    return replace(decoder, **{name: values[name] for name in values.keys() - written})


def _npad_defaults(defaults: Defaults) -> dict[str, Any]:
    """Return the fields of NPAD, besides its noise, whose defaults are the model's."""
    return {"chains": defaults.chains, "selector": defaults.selector}


def _build(
    name: str,
    settings: dict[str, Any],
    choice: str,
    defaults: Defaults,
    outermost: bool = False,
) -> Decoder:
    """Build a decoder, and consume the settings.

    choice: the option that chose it, for error messages: `--inner beam`.
    """
    if name not in DECODERS:
        raise InvalidInput(
            f"{choice.split()[0]} must be one of {', '.join(DECODERS.kinds)}, not {name!r}"
        )
    kind: Any = DECODERS.kinds[name]
    types = get_type_hints(kind)
    values: dict[str, Any] = {}
    if settings.get("nbest") == 1 or kind.returns_several:
        settings.pop("nbest", None)
    elif "nbest" in settings and "nbest" in types:
        values["nbest"] = settings.pop("nbest")
    seed = settings.get("seed")  # an inner decoder's, too
    for field in fields(kind):
        if types[field.name] is Noise:
            values[field.name] = _noise(kind, settings, defaults)
        elif types[field.name] is not Decoder and "help" in field.metadata:
            option = DecoderOption(field, types[field.name])
            if option.name in settings:
                values[field.name] = option.parse(settings.pop(option.name))
            elif kind is NPAD and option.name in _npad_defaults(defaults):
                values[field.name] = _npad_defaults(defaults)[option.name]
            elif kind is Selected and option.name == "selector":
                values[field.name] = defaults.selector
    selector = defaults.selector
    if outermost and "selector" in settings and SELECTOR in options_of(kind):
        selector = SELECTOR.parse(settings.pop("selector"))
    values |= _inner_decoders(kind, settings, seed, defaults)
    offered = option_names(kind) | ({"nbest"} if "nbest" in types else set())
    _refuse(set(settings), choice, offered)
    decoder: Decoder = kind(**values)
    return _selected(decoder, selector) if outermost and kind is not NPAD else decoder


def _inner_decoders(
    kind: type, settings: dict[str, Any], seed: int | None, defaults: Defaults
) -> dict[str, Decoder]:
    """Return the decoders of the fields of a decoder, from the settings that are left.

    The first field, `inner`, has the options; others, as `pseudo_references`, have theirs in
    brackets.
    """
    types = get_type_hints(kind)
    inner = [f for f in fields(kind) if types[f.name] is Decoder and "help" in f.metadata]
    decoders: dict[str, Decoder] = {}
    for field in inner[1:]:
        own = {field.name: settings.pop(field.name)} if field.name in settings else {}
        decoders[field.name] = _inner(kind, field, own, seed, defaults)
        if hasattr(decoders[field.name], "seed"):
            settings.pop("seed", None)  # the first one inherits it, if it has one
    for field in inner[:1]:
        decoders[field.name] = _inner(kind, field, settings, seed, defaults)
    return decoders


def _inner(
    owner: type,
    field: Field[Any],
    settings: dict[str, Any],
    seed: int | None,
    defaults: Defaults,
) -> Decoder:
    """Return the decoder of a field such as `inner`, from the settings that are left."""
    assert field.default_factory is not MISSING
    name = str(settings.pop(field.name, name_of_kind(type(field.default_factory()))))
    if name == "npad" and owner is NPAD:
        raise InvalidInput("NPAD cannot be its own inner decoder; use more chains")
    flag = flag_of(field.name)
    if "(" in name:
        _refuse_beside_fields(set(settings), f"{flag} {name}")
        decoder: Any = DECODERS.parse(name)
        inherits = seed is not None and hasattr(decoder, "seed") and "seed=" not in name
        return cast(Decoder, replace(decoder, seed=seed) if inherits else decoder)
    types = get_type_hints(DECODERS.kinds[name]) if name in DECODERS else {}
    inherited = {"seed": seed} if seed is not None and "seed" in types else {}
    inner_settings = settings | inherited
    settings.clear()
    return _build(name, inner_settings, f"{flag} {name}", defaults)


def _noise(kind: type, settings: dict[str, Any], defaults: Defaults) -> Noise:
    """Return the default noise, changed by the settings, which are consumed.

    NPAD's default is the model's; another decoder's is its own.
    """
    default: Noise = defaults.noise
    if kind is not NPAD:
        factory = next(f for f in fields(kind) if f.name == "noise").default_factory
        assert callable(factory)
        default = factory()
    options = {option.name: option for option in options_of(Noise)}
    changes = {
        option.field.name: option.parse(settings.pop(name))
        for name, option in options.items()
        if name in settings
    }
    distribution = changes.get("distribution")
    relative = changes.get("relative", default.relative)
    if distribution is not None and distribution.relative_only and not relative:
        raise InvalidInput(
            f"--noise {label(distribution)} is a share of what it perturbs: add --relative"
        )
    return replace(default, **changes)


def _refuse(names: set[str], choice: str, offered: set[str]) -> None:
    """Refuse settings that the chosen decoder has no option for."""
    for name in sorted(names):
        options = ", ".join(map(flag_of, sorted(offered))) or "no options"
        raise InvalidInput(f"{flag_of(name)} does not go with {choice}, which has {options}")


def _refuse_beside_fields(names: set[str], choice: str) -> None:
    """Refuse settings beside a decoder that is given with its fields."""
    for name in sorted(names):
        raise InvalidInput(
            f"{flag_of(name)} does not go with {choice}: write its field within the brackets"
        )


def compared_decoders(
    settings: dict[str, Any], defaults: Defaults = NPAD_DEFAULTS
) -> list[Decoder]:
    """Return every compared decoder, each with those settings that it has an option for.

    A decoder with an inner one, such as NPAD, comes twice, with greedy and with beam search, unless
    --inner is set.
    """
    compared: dict[str, Any] = {
        name: kind
        for name, kind in DECODERS.kinds.items()
        if kind.compared  # type: ignore[attr-defined]
    }
    known = set[str]().union(*map(option_names, compared.values()))
    _refuse(set(settings) - known, "npad compare", known)
    decoders = []
    for name, kind in compared.items():
        names = option_names(kind)
        if "inner" not in names:
            decoders.append(make_decoder(name, _restrict(settings, names), defaults))
            continue
        for inner in [settings["inner"]] if "inner" in settings else ["greedy", "beam"]:
            inner_names = option_names(DECODERS.kinds[inner]) if inner in DECODERS else set()
            restricted = _restrict(settings, names | inner_names)
            decoders.append(make_decoder(name, restricted | {"inner": inner}, defaults))
    return decoders


def _restrict(settings: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name in names}
