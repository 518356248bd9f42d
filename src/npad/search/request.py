"""One decoding request: a decoder with its limits, and how to build it from named options.

The options are the fields of the decoders and of `Noise`, by name. The command line, HTTP and
everything else that takes options builds its decoders here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from functools import cache
from typing import Any, cast, get_type_hints

from npad.constraints.kinds import Constraint
from npad.errors import InvalidInput
from npad.noise.noisy import Noise
from npad.search.decoder import Decoder, ensure_decoder, has_candidates
from npad.search.defaults import Defaults
from npad.search.registry import DECODERS
from npad.search.selected import Selected, with_selector
from npad.selectors import Vote
from npad.specs import default_of, label, name_of_kind, parse_value
from npad.validation import brief, did_you_mean, ensure_fields

MAX_LENGTH = 200
MAX_ROWS = 1024
LIMITS = ("max_length", "max_rows", "min_confidence")


@dataclass(frozen=True)
class Decoding:
    """What to run on each input, and how much of it at a time.

    Attributes:
        decoder: the search.
        max_length: tokens that an output may have, its end token included.
        max_rows: rows (inputs × chains × beams) decoded at a time, fewer if inputs are long or
            memory is short; it decides memory and speed, not the result.
        constraint: what every output must satisfy.
        min_confidence: outputs of less confidence are marked as doubtful.
        fallback_decoder: decodes the inputs of doubtful outputs again; its outputs are returned.
    """

    decoder: Decoder
    max_length: int = field(default=MAX_LENGTH, metadata={"minimum": 1})
    max_rows: int = field(default=MAX_ROWS, metadata={"minimum": 1})
    constraint: Constraint | None = field(
        default=None, metadata={"rule": "a constraint, such as Prefix('Ich')"}
    )
    min_confidence: float | None = field(
        default=None,
        metadata={
            "help": "Mark outputs of less confidence, 0 to 100",
            "minimum": 0,
            "maximum": 100,
        },
    )
    fallback_decoder: Decoder | None = field(
        default=None,
        metadata={
            "help": "Decode again where an output is below --min-confidence, as beam(width=20)"
        },
    )

    def __post_init__(self) -> None:
        ensure_decoder(self.decoder)
        ensure_fields(self)
        if self.fallback_decoder is not None:
            ensure_decoder(self.fallback_decoder, "fallback_decoder")
            if self.min_confidence is None:
                raise InvalidInput("fallback_decoder needs min_confidence, below which it decodes")

    @property
    def fallback(self) -> Decoding | None:
        """The request for inputs of doubtful outputs; None if they are not decoded again."""
        if self.fallback_decoder is None:
            return None
        return replace(self, decoder=self.fallback_decoder, fallback_decoder=None)


@dataclass(frozen=True)
class Option:
    """One field of a decoder, or of its noise, as a named option."""

    field: Field[Any]
    kind: Any  # the field's type

    @property
    def name(self) -> str:
        return str(self.field.metadata.get("option", self.field.name))

    @property
    def names(self) -> tuple[str, ...]:
        """What requests may call it: its name, the field's, and old ones."""
        return (self.name, self.field.name, *self.field.metadata.get("formerly", ()))

    @property
    def default(self) -> Any:
        """The field's default; `dataclasses.MISSING` if it has none."""
        return default_of(self.field)

    def parse(self, value: Any, spell: Callable[[str], str]) -> Any:
        """Return the field's value from the option's, which may be a text."""
        return parse_value(spell(self.name), value, self.kind) if isinstance(value, str) else value


def options_of(kind: Any) -> tuple[Option, ...]:
    """Return the options of a decoder: its fields that have a help, and those of its noise.

    A decoder with candidates also has the option `selector`, which wraps it in `Selected`.
    """
    return _options_of(kind)


@cache
def _types_of(kind: Any) -> dict[str, Any]:
    """Return the types of a class's fields, which take a millisecond to resolve."""
    return get_type_hints(kind)


@cache
def _options_of(kind: Any) -> tuple[Option, ...]:
    types = _types_of(kind)
    found: list[Option] = []
    for own in fields(kind):
        if types[own.name] is Noise:
            found += options_of(Noise)
        elif "help" in own.metadata:
            found.append(Option(own, types[own.name]))
    if takes_selector(kind):
        found.append(SELECTOR)
    return tuple(found)


def takes_selector(kind: Any) -> bool:
    """Return whether the option `selector` wraps a decoder of a class in `Selected`."""
    own = any(f.name == "selector" for f in fields(kind))
    return not own and issubclass(kind, Decoder) and has_candidates(kind)


SELECTOR = next(option for option in options_of(Selected) if option.name == "selector")


def inner_fields(kind: type) -> list[Field[Any]]:
    """Return the options of a decoder that hold another one; the first is its inner decoder."""
    return [option.field for option in options_of(kind) if option.kind is Decoder]


def option_names(kind: type) -> set[str]:
    """Return the names of a decoder's options."""
    return {option.name for option in options_of(kind)}


def decoding_from(
    options: Mapping[str, Any],
    defaults: Defaults | None = None,
    default: str = "beam",
    spell: Callable[[str], str] = str,
) -> Decoding:
    """Return the request that named options describe.

    Args:
        options: `decoder`, a registered name or one with its fields in brackets; the options of the
            decoder and of its inner one; `nbest`, the hypotheses to return; `answer`, for `Vote`;
            and the other fields of `Decoding`. Values may be texts. None stands for an option that
            is not set.
        defaults: the model's, for what is left open; by default those of npad's own models.
        default: the decoder without an option `decoder`.
        spell: how error messages write an option's name, such as `--top-k`.

    Raises:
        InvalidInput: an option does not go with the decoder, or breaks a rule.
    """
    given = {name: value for name, value in options.items() if value is not None}
    limits = {name: given.pop(name) for name in LIMITS if name in given}
    for name, value in limits.items():
        kind = float if name == "min_confidence" else int
        limits[name] = parse_value(spell(name), value, kind) if isinstance(value, str) else value
    limits |= {"constraint": given.pop("constraint", None)}
    builder = _Builder(Defaults() if defaults is None else defaults, spell)
    if (fallback := given.pop("fallback_decoder", None)) is not None:
        if "min_confidence" not in limits:
            raise InvalidInput(
                f"{spell('fallback_decoder')} needs {spell('min_confidence')}, below which it "
                "decodes again"
            )
        limits["fallback_decoder"] = builder.decoder(str(fallback), {})
    return Decoding(builder.decoder(str(given.pop("decoder", default)), given), **limits)


@dataclass(frozen=True)
class _Builder:
    """Builds decoders from options; each method consumes the options that it uses."""

    defaults: Defaults
    spell: Callable[[str], str]

    def decoder(self, name: str, given: dict[str, Any]) -> Decoder:
        """Return the outermost decoder, with its selector."""
        choice = f"{self.spell('decoder')} {name}"
        nbest = Option(_NBEST, int).parse(given.pop("nbest", 1), self.spell)
        kind = DECODERS.kind_of(name)
        selector = self.defaults.selector
        if (answer := given.pop("answer", None)) is not None:
            given["selector"] = self._vote(given.get("selector", "vote"), str(answer))
        if kind is not None and takes_selector(kind) and "selector" in given:
            selector = SELECTOR.parse(given.pop("selector"), self.spell)
        decoder = self._built(name, given, choice)
        if nbest != 1 and not decoder.returns_several:
            if not hasattr(decoder, "nbest"):
                self._refuse({"nbest"}, choice, type(decoder))
            decoder = replace(decoder, nbest=nbest)  # type: ignore[type-var]
        return with_selector(decoder, selector)

    def _vote(self, selector: str, answer: str) -> Vote:
        """Return a vote on answers that a pattern finds."""
        vote = SELECTOR.parse(selector, self.spell)
        if not isinstance(vote, Vote):
            rule = f"{self.spell('answer')} is what a vote compares: write {self.spell('selector')}"
            raise InvalidInput(f"{rule} vote, not {selector}")
        return replace(vote, answer=answer)

    def _built(self, name: str, given: dict[str, Any], choice: str) -> Decoder:
        """Return a decoder by name from options, or as its fields in brackets say.

        choice: the option that chose it, for error messages: `--inner beam`.
        """
        if "(" in name:
            for option in sorted(given):
                raise InvalidInput(
                    f"{self.spell(option)} does not go with {choice}: write its field within the "
                    "brackets"
                )
            return cast(Decoder, DECODERS.parse(name, self._fill))
        kind = DECODERS.kind_of(name)
        if kind is None:
            names = ", ".join(DECODERS.names())
            rule = f"{choice.split()[0]} must be one of {names}, not {brief(name, 60)}"
            raise InvalidInput(rule + did_you_mean(name, DECODERS.names()))
        values, seed = self._fill(kind), given.get("seed")  # an inner decoder has it as well
        types = _types_of(kind)
        own = fields(kind)
        inner = inner_fields(kind)
        for noise in [f for f in own if types[f.name] is Noise]:
            default = values.get(noise.name) or default_of(noise)
            values[noise.name] = self._noise(default, given)
        values |= self._values(kind, given, {f.name for f in inner})
        for other in inner[1:]:  # which have their options in brackets; the first has the rest
            spec = {other.name: given.pop(other.name)} if other.name in given else {}
            values[other.name] = self._inner(other, spec, seed)
            if hasattr(values[other.name], "seed"):
                given.pop("seed", None)
        for first in inner[:1]:
            values[first.name] = self._inner(first, given, seed)
        self._refuse(set(given), choice, kind)
        return cast(Decoder, kind(**values))

    def _fill(self, kind: Any) -> dict[str, Any]:
        """Return the model's defaults of a decoder's fields."""
        return dict(kind.defaults_on(self.defaults)) if issubclass(kind, Decoder) else {}

    def _values(self, kind: type, given: dict[str, Any], besides: set[str]) -> dict[str, Any]:
        """Return the fields of a class that options set."""
        own = {f.name for f in fields(kind)} - besides
        return {
            option.field.name: option.parse(given.pop(name), self.spell)
            for option in options_of(kind)
            for name in option.names
            if option.field.name in own and name in given
        }

    def _noise(self, default: Noise, given: dict[str, Any]) -> Noise:
        """Return the default noise, changed by the options."""
        changes = self._values(Noise, given, set())
        distribution = changes.get("distribution")
        relative = changes.get("relative", default.relative)
        if getattr(distribution, "relative_only", False) and not relative:
            choice = f"{self.spell('distribution')} {label(distribution)}"
            raise InvalidInput(
                f"{choice} is a share of what it perturbs: add {self.spell('relative')}"
            )
        return replace(default, **changes)

    def _inner(self, owned: Field[Any], given: dict[str, Any], seed: Any) -> Decoder:
        """Return the decoder of a field such as `inner`, from the options that are left."""
        name = str(given.pop(owned.name, name_of_kind(type(default_of(owned)))))
        choice = f"{self.spell(owned.name)} {name}"
        options = dict(given)
        given.clear()
        if "(" not in name:
            kind = DECODERS.kind_of(name)
            if seed is not None and kind is not None and "seed" in option_names(kind):
                options["seed"] = seed
            return self._built(name, options, choice)
        decoder: Any = self._built(name, options, choice)
        inherits = seed is not None and hasattr(decoder, "seed") and "seed=" not in name
        return cast(
            Decoder, replace(decoder, seed=SEED.parse(seed, self.spell)) if inherits else decoder
        )

    def _refuse(self, names: set[str], choice: str, kind: type) -> None:
        """Refuse options that the chosen decoder does not have."""
        offered = option_names(kind) | {f.name for f in fields(kind) if f.name == "nbest"}
        for name in sorted(names):
            options = ", ".join(map(self.spell, sorted(offered))) or "no options"
            others = [name_of_kind(other) for other in DECODERS if name in option_names(other)]
            owners = f"; it is an option of {', '.join(others)}" if others else ""
            rule = f"{self.spell(name)} does not go with {choice}, which has {options}{owners}"
            raise InvalidInput(rule)


SEED = next(option for option in options_of(DECODERS.kinds["sampling"]) if option.name == "seed")
_NBEST = next(field for field in fields(DECODERS.kinds["beam"]) if field.name == "nbest")
