"""The options of all registered decoders, made from the fields of their dataclasses."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, dataclass, fields, replace
from typing import Annotated, Any, cast, get_args, get_type_hints

import typer

from npad.errors import InvalidInput
from npad.noise.noisy import Noise
from npad.pipelines.loading import defaults_of
from npad.search.decoder import Decoder
from npad.search.defaults import Defaults
from npad.search.npad import NPAD
from npad.search.registry import DECODERS
from npad.specs import Registry, label, name_of_kind, parse_value, split_commas

PANEL = "How to decode"  # of the help
NPAD_DEFAULTS = Defaults()  # of npad's own models


@dataclass(frozen=True)
class DecoderOption:
    """One field of a decoder, or of its noise, as an option of the command line."""

    field: Field[Any]
    kind: Any  # the field's type

    @property
    def name(self) -> str:
        return str(self.field.metadata.get("option", self.field.name))

    @property
    def flag(self) -> str:
        return flag_of(self.name)

    def parse(self, value: Any) -> Any:
        """Return the field's value from the option's."""
        if not isinstance(value, str):
            return value
        return parse_value(self.flag, value, self.kind)

    def parameter(self, owners: list[str]) -> inspect.Parameter:
        """Return the option as a parameter for typer; `owners` are the decoders that have it."""
        flags = [self.flag, *self.field.metadata.get("flags", ())]
        kind = self._plain_kind()
        if kind is bool:
            negatable = self.field.default is True or self.field.metadata.get("negatable", False)
            flags = [f"{self.flag}/--no-{self.flag[2:]}" if negatable else self.flag]
        options: dict[str, Any] = {"help": self._help(owners), "rich_help_panel": PANEL}
        if kind is not bool:
            options["metavar"] = "NAME" if kind is str and self.name != "sigma" else "N"
        annotation: Any = Annotated[kind | None, typer.Option(*flags, **options)]
        return inspect.Parameter(
            self.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
        )

    def _plain_kind(self) -> Any:
        """The type that typer parses: a plain one, or text."""
        if self.name == "sigma":
            return str
        kinds = get_args(self.kind) or (self.kind,)
        return next((kind for kind in (bool, int, float) if kind in kinds), str)

    def _help(self, owners: list[str]) -> str:
        text = f"{', '.join(owners)}: {self.field.metadata['help']}"
        parts = Registry.for_field(self.kind)
        if parts is not None and parts is not DECODERS:
            text += f": {', '.join(map(described, parts))}"
        default = self._default()
        return f"{text}. [{default}]" if default else f"{text}."

    def _default(self) -> str:
        if "shown" in self.field.metadata:
            return str(self.field.metadata["shown"])
        if self.field.default is not MISSING:
            default = self.field.default
            return "" if default is None or default is False else label(default)
        if self.field.default_factory is not MISSING:
            return label(self.field.default_factory())
        return ""


def flag_of(name: str) -> str:
    """Return the flag of a field: top_k -> --top-k."""
    return "--" + name.replace("_", "-")


def described(kind: type) -> str:
    """Return a part's name with its plain fields: power(p=0.5)."""
    types = get_type_hints(kind)
    plain = [
        f"{field.name}={label(field.default)}"
        for field in fields(kind)
        if types[field.name] in (int, float) and field.default is not MISSING
    ]
    return name_of_kind(kind) + (f"({','.join(plain)})" if plain else "")


def options_of(kind: type) -> Iterator[DecoderOption]:
    """Yield the options of a decoder: its fields that have a help, and those of its noise."""
    types = get_type_hints(kind)
    for field in fields(kind):
        if types[field.name] is Noise:
            yield from options_of(Noise)
        elif "help" in field.metadata:
            yield DecoderOption(field, types[field.name])


def all_options() -> list[inspect.Parameter]:
    """Return the options of all registered decoders as parameters for typer, each once.

    Decoders with options of the same name share the option.
    """
    first: dict[str, DecoderOption] = {}
    owners: dict[str, list[str]] = {}
    for kind in DECODERS:
        for option in options_of(kind):
            first.setdefault(option.name, option)
            owners.setdefault(option.name, []).append(name_of_kind(kind))
    return [option.parameter(owners[name]) for name, option in first.items()]


def decodes(default: str = "beam") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Mark a command that decodes: `with_decoder_options` adds the options of all decoders.

    Args:
        default: the decoder without --decoder.
    """

    def mark(command: Callable[..., None]) -> Callable[..., None]:
        command.default_decoder = default  # type: ignore[attr-defined]
        return command

    return mark


def with_decoder_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of all registered decoders to a marked command.

    A command marked by `decodes` receives the decoder that the options describe, as `decoder`; one
    marked by `compares` receives every compared decoder, as `decoders`. What the options leave open
    is the default of the command's `model`. Other commands are returned unchanged.
    """
    options = all_options()
    if hasattr(command, "default_decoder"):
        default = command.default_decoder
        listed = f"{', '.join(DECODERS.kinds)}; or with its fields, as beam(width=3)."
        choice = typer.Option("--decoder", "-d", metavar="NAME", help=listed, rich_help_panel=PANEL)
        keyword = inspect.Parameter.KEYWORD_ONLY
        annotation = Annotated[str, choice]
        extra = inspect.Parameter("decoder", keyword, default=default, annotation=annotation)

        @functools.wraps(command)
        def decoding(decoder: str, **values: Any) -> None:
            settings = {option.name: values.pop(option.name) for option in options}
            settings["nbest"] = values.get("nbest")
            defaults = defaults_of(values["model"])
            command(decoder=make_decoder(decoder, _without_none(settings), defaults), **values)

        return _with_parameters(decoding, command, [extra, *options], "decoder")
    if hasattr(command, "compared_defaults"):
        compared = command.compared_defaults

        @functools.wraps(command)
        def comparing(**values: Any) -> None:
            settings = {option.name: values.pop(option.name) for option in options}
            settings = compared | _without_none(settings)
            decoders = compared_decoders(settings, defaults_of(values["model"]))
            command(decoders=decoders, **values)

        return _with_parameters(comparing, command, options, "decoders")
    return command


def compares(**defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Mark a command that compares decoders.

    Args:
        defaults: options that differ from the decoders' defaults.
    """

    def mark(command: Callable[..., None]) -> Callable[..., None]:
        command.compared_defaults = defaults  # type: ignore[attr-defined]
        return command

    return mark


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


def option_names(kind: type) -> set[str]:
    """Return the names of a decoder's options."""
    return {option.name for option in options_of(kind)}


def _restrict(settings: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name in names}


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _with_parameters(
    wrapped: Callable[..., None],
    command: Callable[..., None],
    extra: list[inspect.Parameter],
    replaced: str,
) -> Callable[..., None]:
    """Give `wrapped` the parameters of `command` without `replaced`, and the extra ones."""
    signature = inspect.signature(command, eval_str=True)
    parameters = [p for p in signature.parameters.values() if p.name != replaced] + extra
    wrapped.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapped


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
        _refuse_beside_fields(set(settings) - {"nbest"}, f"--decoder {name}")
        nbest = settings.get("nbest", 1)
        if nbest > 1 and not decoder.returns_several:
            if not hasattr(decoder, "nbest"):
                _refuse({"nbest"}, f"--decoder {name}", option_names(type(decoder)))
            decoder = replace(decoder, nbest=nbest)
        return _with_defaults(decoder, name, defaults)
    return _build(name, dict(settings), f"--decoder {name}", defaults)


def _with_defaults(decoder: Decoder, spec: str, defaults: Defaults) -> Decoder:
    """Return a decoder that is given with its fields, with the defaults of those not written."""
    if not isinstance(decoder, NPAD):
        return decoder
    inside = spec.strip().partition("(")[2].removesuffix(")")
    written = {field.partition("=")[0].strip() for field in split_commas(inside)}
    values: dict[str, Any] = {"noise": defaults.noise, "selector": defaults.selector}
    return replace(decoder, **{name: values[name] for name in values.keys() - written})


def _build(name: str, settings: dict[str, Any], choice: str, defaults: Defaults) -> Decoder:
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
            elif kind is NPAD and option.name == "selector":
                values[field.name] = defaults.selector
    inner_fields = [f for f in fields(kind) if types[f.name] is Decoder and "help" in f.metadata]
    for field in inner_fields:
        values[field.name] = _inner(field.name, settings, seed, defaults)
    offered = option_names(kind) | ({"nbest"} if "nbest" in types else set())
    _refuse(set(settings), choice, offered)
    decoder: Decoder = kind(**values)
    return decoder


def _inner(field: str, settings: dict[str, Any], seed: int | None, defaults: Defaults) -> Decoder:
    """Return the decoder of a field such as `inner`, from the settings that are left."""
    name = str(settings.pop(field, "greedy"))
    if name == "npad":
        raise InvalidInput("NPAD cannot be its own inner decoder; use more chains")
    if "(" in name:
        _refuse_beside_fields(set(settings), f"{flag_of(field)} {name}")
        decoder: Any = DECODERS.parse(name)
        inherits = seed is not None and hasattr(decoder, "seed") and "seed=" not in name
        return cast(Decoder, replace(decoder, seed=seed) if inherits else decoder)
    types = get_type_hints(DECODERS.kinds[name]) if name in DECODERS else {}
    inherited = {"seed": seed} if seed is not None and "seed" in types else {}
    inner_settings = settings | inherited
    settings.clear()
    return _build(name, inner_settings, f"{flag_of(field)} {name}", defaults)


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
