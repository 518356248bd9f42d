"""Decoders on the command line: the fields of all registered ones are options of the commands.

`@decodes()` and `@compares()` give a command these options, and what they describe as an argument.
The way back, from a decoder to its options, is `options_for`.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import reduce
from operator import and_
from typing import Annotated, Any, get_type_hints

from npad.cli.options import (
    Constrain,
    Expanded,
    MaxLength,
    MaxRows,
    field_parameter,
    field_parameters,
)
from npad.cli.options import flag_of as flag_of
from npad.cli.options import option as declared
from npad.cli.terminal import note
from npad.constraints.kinds import CONSTRAINTS, LISTS, Constraint, constraint_named
from npad.engine.devices import device_named
from npad.errors import InvalidInput
from npad.noise.noisy import Noise
from npad.pipelines.loading import defaults_of
from npad.search.decoder import Decoder
from npad.search.defaults import Defaults
from npad.search.registry import DECODERS
from npad.search.request import (
    MAX_LENGTH,
    MAX_ROWS,
    SELECTOR,
    Decoding,
    Option,
    decoding_from,
    inner_fields,
    options_of,
    takes_selector,
)
from npad.search.selected import Selected, is_mbr_on_a_beam
from npad.specs import Registry, default_of, label, name_of_kind, spec
from npad.text.files import Lines
from npad.validation import MAX_SEED

PANEL = "How to decode"  # of the help
LISTED = 2  # parts of an option, in the help of commands
KEYWORD = inspect.Parameter.KEYWORD_ONLY
LIMITS = {"max_length": MAX_LENGTH, "max_rows": MAX_ROWS, "constraint": None}
# BLEU of en-de on its test set, docs/results/en-de/README.md, "Which candidate to return"
MBR_ON_A_BEAM = (
    "warning: MBR on one beam's list is worse than the beam alone (40.2 BLEU against 43.2 on "
    "en-de); give it samples, --decoder sampling, or use --selector length-normalised"
)


ACTIONS = ("min_confidence", "fallback_decoder")  # fields of `Decoding`: what to do in doubt
ANSWER = Annotated[
    str | None,
    declared(
        "Let outputs vote on their last match of this, or on its first group, as "
        "--selector vote does on whole texts.",
        metavar="REGEX",
        panel=PANEL,
        hidden=True,
    ),
]


def decodes(
    default: str | None = "beam", limits: Mapping[str, int | None] = LIMITS, acts: bool = False
) -> Callable[[Callable[..., None]], Expanded]:
    """Give a command the options of all decoders, and the request that they describe.

    The command receives `decoding`, and has --max-length and --max-rows; or only `decoder`. What
    the options leave open is the default of the command's `model`.

    Args:
        default: the decoder without --decoder; None if the command receives None then.
        limits: defaults of --max-length and --max-rows that differ from those of `Decoding`.
        acts: whether it has --min-confidence and --fallback-decoder.
    """

    def options() -> list[inspect.Parameter]:
        usual = [name for name, kind in DECODERS.kinds.items() if is_everyday(kind)]
        text = f"{', '.join(usual)}, …; or with its fields, as beam(width=3)."
        text += "" if default is None else f" [{default}]"
        choice = _keyword("decoder", None, Annotated[str | None, _decoder_option(text)])
        return [choice, *parameters(default is not None)]

    actions = field_parameters(Decoding, PANEL, ACTIONS, everyday=()) if acts else []
    more = [] if default is None else [_keyword("answer", None, ANSWER), *actions]

    def made(values: dict[str, Any], limited: bool) -> Any:
        settings = settings_in(values)
        decoder = values.pop("decoder") or default
        if "device" in values and values.get("engine") is None:  # workers have their own
            device_named(values["device"], "--device")  # refused before a model is asked for
        if decoder is None:
            for name in settings:
                flag = flag_of(name)
                raise InvalidInput(f"{flag} belongs to a decoder; choose it with --decoder")
            return None
        settings |= limits_in(values) if limited else {}
        settings |= {option.name: values.pop(option.name) for option in more}
        settings |= {"decoder": decoder, "nbest": values.get("nbest")}
        decoding = decoding_from(settings, defaults_of(values["model"]), spell=flag_of)
        if is_mbr_on_a_beam(decoding.decoder):
            note(MBR_ON_A_BEAM)
        return decoding if limited else decoding.decoder

    def expanded(command: Callable[..., None]) -> Expanded:
        limited = "decoder" not in inspect.signature(command).parameters
        further = [*(limit_options({**LIMITS, **limits}) if limited else []), *more]
        return Expanded(
            command,
            "decoding" if limited else "decoder",
            lambda: [*options(), *further],
            lambda values: made(values, limited),
        )

    return expanded


def compares(**defaults: Any) -> Callable[[Callable[..., None]], Expanded]:
    """Give a command the options of all decoders, and the compared requests as `decodings`.

    Args:
        defaults: options that differ from the decoders' defaults.
    """
    text = (
        "Only this decoder, by name or as beam(width=3); repeat it for several. "
        "The first is what the others are compared with on a test set."
    )
    choice = _keyword("decoder", None, Annotated[list[str] | None, _decoder_option(text)])

    def made(values: dict[str, Any]) -> dict[str, Decoding]:
        settings, chosen = settings_in(values), values.pop("decoder")
        limits = limits_in(values)
        decoders = compared_decoders(settings, defaults_of(values["model"]), chosen, defaults)
        return {name: Decoding(decoder, **limits) for name, decoder in decoders.items()}

    def options() -> list[inspect.Parameter]:
        return [choice, *parameters(), *limit_options(LIMITS)]

    return lambda command: Expanded(command, "decodings", options, made)


def limit_options(limits: Mapping[str, int | None]) -> list[inspect.Parameter]:
    """Return the options of a `Decoding` besides its decoder, with their defaults."""
    kinds = {"max_length": MaxLength, "max_rows": MaxRows, "constraint": Constrain}
    return [_keyword(name, limits[name], kind) for name, kind in kinds.items()]


def limits_in(values: dict[str, Any]) -> dict[str, Any]:
    """Take the fields of a `Decoding` besides its decoder out of a command's values."""
    limits = {name: values.pop(name) for name in LIMITS}
    if limits["constraint"]:
        limits["constraint"] = reduce(and_, map(constraint_of, limits["constraint"]))
    return limits


def constraint_of(spec: str) -> Constraint:
    """Return the constraint of a spec such as `without(Handy|Mobiltelefon)` or `choices(@FILE)`."""
    name, bracket, inside = spec.partition("(")
    if not bracket or not inside.endswith(")"):
        names = ", ".join(CONSTRAINTS)
        rule = f"--constraint must be one of {names}, with its values in brackets"
        raise InvalidInput(
            f"{rule}: without(Handy), choices(Ja|Nein) or choices(@FILE), not {spec!r}"
        )
    inside = inside[:-1]
    if inside.startswith("@"):
        return constraint_named(name, list(Lines.of_file(inside[1:])))
    return constraint_named(name, inside.split("|") if name in LISTS else [inside])


def _decoder_option(text: str) -> Any:
    return declared(text, "--decoder", "-d", complete=complete_decoder, panel=PANEL)


def complete_decoder(incomplete: str) -> list[tuple[str, str]]:
    """Return the names of decoders that begin like this, with their summaries."""
    found = {name: DECODERS.kinds.get(name) for name in DECODERS.names()}
    return [(n, summary_of(kind)) for n, kind in found.items() if n.startswith(incomplete)]


def summary_of(kind: Any) -> str:
    """Return what a decoder does in one line, the first one of its docstring."""
    text = inspect.getdoc(kind) or ""
    generated = text.startswith(f"{getattr(kind, '__name__', '')}(")  # by `dataclass`
    return "" if generated else text.partition("\n")[0]


def is_everyday(kind: Any) -> bool:
    """Return whether most users need a decoder; the others are for research."""
    return bool(getattr(kind, "everyday", False))


def _keyword(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, KEYWORD, default=default, annotation=annotation)


def settings_in(values: dict[str, Any]) -> dict[str, Any]:
    """Take the options of decoders out of a command's values, and return those that are set."""
    names = {option.name for kind in DECODERS for option in options_of(kind)}
    settings = {name: values.pop(name) for name in names & values.keys()}
    return {name: value for name, value in sorted(settings.items()) if value is not None}


def parameters(everyday: bool = True) -> list[inspect.Parameter]:
    """Return the options of all registered decoders as parameters for typer.

    Decoders with options of the same name share the option. The short help has the usual ones, or
    none unless `everyday`.
    """
    first: dict[str, Option] = {}
    owners: dict[str, list[type]] = {}
    for kind in DECODERS:
        for option in options_of(kind):
            first.setdefault(option.name, option)
            owners.setdefault(option.name, []).append(kind)
    return [parameter_of(option, owners[name], everyday) for name, option in first.items()]


def parameter_of(
    option: Option, owners: Sequence[type] = (), shown: bool = True
) -> inspect.Parameter:
    """Return an option as a parameter for typer.

    Args:
        option: the option.
        owners: the decoders that have it, named in its help; by default it is one decoder's, and
            the help has its bounds.
        shown: whether the short help has the option if it is an everyday one.
    """
    everyday = option.field.metadata.get("everyday", False)
    text = str(option.field.metadata["help"])
    if owners:
        usual = [kind for kind in owners if is_everyday(kind)] if everyday else []
        text = f"{', '.join(map(name_of_kind, usual or owners))}: {text}"
    parts = Registry.for_field(option.kind)
    if parts is not None and parts is not DECODERS:
        some = (*parts.names()[:LISTED], "…")  # which are enough where `npad decoders` has all
        text += f": {', '.join(some if owners else map(described, parts))}"
    return field_parameter(
        option.name,
        option.kind,
        option.field.metadata,
        option.default,
        text if owners else text + _bounds(option.field.metadata),
        PANEL,
        hidden=not (everyday and shown),
    )


def _bounds(metadata: Mapping[str, Any]) -> str:
    """Return the bounds of a field as the end of its help: `; at least 1`."""
    words = {"minimum": "at least", "maximum": "at most", "above": "above", "below": "below"}
    known = {name: metadata[name] for name in words if metadata.get(name, MAX_SEED) != MAX_SEED}
    return "".join(f"; {words[name]} {label(value)}" for name, value in known.items())


def described(kind: type) -> str:
    """Return a part's name with its plain fields: power(p=0.5)."""
    types = get_type_hints(kind)
    plain = [
        f"{field.name}={label(field.default)}"
        for field in fields(kind)
        if types[field.name] in (int, float) and field.default is not MISSING
    ]
    return name_of_kind(kind) + (f"({','.join(plain)})" if plain else "")


def compared_decoders(
    settings: Mapping[str, Any],
    defaults: Defaults | None = None,
    chosen: list[str] | None = None,
    quick: Mapping[str, Any] | None = None,
) -> dict[str, Decoder]:
    """Return decoders by their titles, each with those settings that it has an option for.

    A decoder with an inner one, such as NPAD, comes twice, with greedy and with beam search, unless
    --inner is set.

    Args:
        settings: the options that are set; each must belong to one of the decoders at least.
        defaults: the model's.
        chosen: names, or decoders with their fields in brackets; all compared ones by default. One
            whose title another has is called as it was typed.
        quick: settings that are options of a decoder only where `settings` leave them open.
    """
    compared = [name for name, kind in DECODERS.kinds.items() if kind.compared]  # type: ignore[attr-defined]
    found: dict[str, Decoder] = {}
    known: set[str] = set()
    for name in chosen or compared:
        for inner in _inner_options(name, settings, both=name in compared):
            offered = _offered(name).union(*map(_offered, inner.values()))
            known |= offered
            options = {**({} if "(" in name else quick or {}), **settings}
            options = {option: value for option, value in options.items() if option in offered}
            options |= {**inner, "decoder": name}
            decoder = decoding_from(options, defaults, spell=flag_of).decoder
            found[name if decoder.title in found else decoder.title] = decoder
    for name in sorted(set(settings) - known):
        shown = ", ".join(map(flag_of, sorted(known))) or "no options"
        raise InvalidInput(
            f"{flag_of(name)} does not go with the compared decoders, which have {shown}"
        )
    return found


def _inner_options(name: str, settings: Mapping[str, Any], both: bool) -> Iterator[dict[str, str]]:
    """Yield the options that choose a decoder's inner one: two if `both` and none is set."""
    kind = None if "(" in name else DECODERS.kind_of(name)
    inner = next(iter([] if kind is None else inner_fields(kind)), None)
    if inner is None:
        yield {}
    elif inner.name in settings:
        yield {inner.name: settings[inner.name]}
    elif both:
        yield from ({inner.name: "greedy"}, {inner.name: "beam"})
    else:
        yield {inner.name: name_of_kind(type(default_of(inner)))}


def _offered(name: str) -> set[str]:
    """Return the names of the options that a decoder has beside its name, or beside its fields."""
    kind = DECODERS.kind_of(name)
    if kind is None:
        return set()
    if "(" in name:
        return {SELECTOR.name} if takes_selector(kind) else set()
    return {option.name for option in options_of(kind)}


def options_for(decoder: Decoder, defaults: Defaults | None = None) -> str:
    """Return the options that make a decoder: NPAD's σ₀, and all that are not the defaults.

    With the same defaults, which are the model's, these options make the same decoder.
    """
    defaults = Defaults() if defaults is None else defaults
    chosen = decoder.inner if isinstance(decoder, Selected) else decoder
    words = ["--decoder", name_of_kind(type(chosen))]
    kind: Any = type(chosen)
    plain = kind(**kind.defaults_on(defaults))
    noises = [(n, value) for n, value in vars(chosen).items() if isinstance(value, Noise)]
    for _, noise in noises:
        words += ["--sigma", label(noise.sigma)]
    words += _changed(chosen, plain)
    for name, noise in noises:
        words += _changed(noise, getattr(plain, name), "sigma")
    selector = getattr(decoder, "selector", None)
    if takes_selector(kind) and (selector or SELECTOR.default) != defaults.selector:
        words += [flag_of(SELECTOR.name), spec(selector or SELECTOR.default)]
    return shlex.join(words)


def _changed(value: Decoder | Noise, default: Any, *besides: str) -> list[str]:
    """Return the options of the fields that differ, but for some."""
    words: list[str] = []
    for option in options_of(type(value)):
        name = option.field.name
        chosen = getattr(value, name, MISSING)
        if name in besides or chosen is MISSING or chosen == getattr(default, name):
            continue
        if isinstance(chosen, bool):
            words.append(flag_of(option.name) if chosen else f"--no-{flag_of(option.name)[2:]}")
        else:
            flags = (*option.field.metadata.get("flags", ()), flag_of(option.name))
            words += [flags[0], spec(chosen)]
    return words
