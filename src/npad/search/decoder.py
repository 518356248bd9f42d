"""The base class of all decoders, and the protocol of a search frontier."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import Field, dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Protocol

from torch import Tensor

from npad.engine.next_token import Prediction
from npad.errors import InvalidInput
from npad.hypotheses import Hypotheses, Hypothesis
from npad.model import Model
from npad.rows import Problems
from npad.search.history import History
from npad.specs import label, name_of_kind
from npad.validation import brief, ensure_fields


@dataclass(frozen=True)
class Cost:
    """What a decoder may need for one sentence, for those who limit it.

    Attributes:
        rows: rows of all its searches, which may run one after another.
        budget: model calls of tree searches, besides one per row and token.
        utilities: pairs of candidates that MBR compares.
    """

    rows: int = 0
    budget: int = 0
    utilities: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.rows + other.rows, self.budget + other.budget, self.utilities + other.utilities
        )

    def __mul__(self, times: int) -> Cost:
        return Cost(self.rows * times, self.budget * times, self.utilities * times)


class Decoder(ABC):
    """A frozen dataclass whose fields are hyper-parameters; `search` receives the data.

    Fields may hold other decoders, its parts. What is asked of a decoder besides `search` has a
    default that follows from its fields; a decoder overrides what is different for it.
    """

    rescores: ClassVar[bool] = False  # whether `search` returns the clean model's scores
    returns_several: ClassVar[bool] = False  # whether it returns several hypotheses by default
    compared: ClassVar[bool] = True  # whether `npad compare` and `npad bench` run it by default
    proves: ClassVar[bool] = False  # whether it proves what it returns most probable
    everyday: ClassVar[bool] = False  # whether `npad decoders` lists it with the usual ones
    example: ClassVar[str] = ""  # options of a command line that uses it
    page: ClassVar[str] = ""  # of docs/, where it is explained
    draws: ClassVar[bool] = False  # whether it draws tokens instead of choosing the best
    compares_prefixes: ClassVar[bool] = False  # whether the scores of prefixes decide, as in beams

    def __post_init__(self) -> None:
        """Check types and bounds of the fields, and that the decoders in them may be there."""
        own: tuple[Field[Any], ...] = fields(self)  # type: ignore[arg-type]
        for field in own:
            if field.type in ("Decoder", Decoder):
                ensure_decoder(getattr(self, field.name), field.name)
        ensure_fields(self)
        for part in self.parts:
            self.ensure_allows(part)

    @abstractmethod
    def search(self, model: Model[Any], state: Any, problems: Problems) -> Hypotheses:
        """Search from the given state.

        Args:
            model: the model, noisy or not.
            state: one row per problem; must not be stepped itself, only selections of it.
            problems: what to solve.

        Returns:
            The hypotheses [groups, n], best first.
        """

    @property
    def parts(self) -> tuple[Decoder, ...]:
        """The decoders in its fields."""
        own: Iterable[Field[Any]] = fields(self) if is_dataclass(self) else ()
        values = [getattr(self, field.name) for field in own]
        several = [value if isinstance(value, tuple) else (value,) for value in values]
        return tuple(part for parts in several for part in parts if isinstance(part, Decoder))

    def within(self) -> Iterator[Decoder]:
        """Yield this decoder and all decoders within it."""
        yield self
        for part in self.parts:
            yield from part.within()

    def ensure_allows(self, part: Decoder) -> None:  # noqa: B027 (nothing is refused by default)
        """Require a decoder that a field of this one may hold.

        Raises:
            InvalidInput: it may not; the message says what to write instead.
        """

    @property
    def rows(self) -> int:
        """The largest number of rows that a problem takes at a time."""
        return max((part.rows for part in self.parts), default=1)

    @property
    def observed_rows(self) -> int:
        """The rows or chains of a problem that an observer of the search sees."""
        return self.rows

    @property
    def cost(self) -> Cost:
        """What it may need for one sentence."""
        return sum((part.cost for part in self.parts), Cost(0 if self.parts else self.rows))

    @property
    def sequential(self) -> bool:
        """Whether it searches its sentences one after another, so that a batch saves nothing."""
        return any(part.sequential for part in self.parts)

    @property
    def title(self) -> str:
        """A short name for tables, such as `beam, 5`, from fields with a `title` in metadata."""
        shown = [field for field in fields(self) if "title" in field.metadata]  # type: ignore[arg-type]
        values = (field.metadata["title"].format(getattr(self, field.name)) for field in shown)
        return ", ".join([name_of_kind(type(self)), *values])

    @property
    def signature(self) -> list[str]:
        """Its name and hyper-parameters, as a signature writes them: `["beam", "width:5", …]`."""
        own: Iterable[Field[Any]] = fields(self) if is_dataclass(self) else ()
        values = (f"{field.name}:{label(getattr(self, field.name))}" for field in own)
        return [name_of_kind(type(self)), *values]

    @property
    def needs_coverage(self) -> bool:
        """Whether its selector reads the attention of the candidates."""
        return bool(getattr(getattr(self, "selector", None), "needs_attention", False))

    @property
    def from_one_beam(self) -> bool:
        """Whether its candidates are those of a single beam, which are much alike."""
        return False

    @property
    def chains(self) -> int:
        """The number of NPAD's chains; 0 for other decoders."""
        return 0

    @property
    def divisible(self) -> bool:
        """Whether its chains may run in ranges, in different places, and their results merge."""
        return False

    def chain_range(self, start: int, stop: int, distinct: bool = True) -> Decoder:
        """Return the decoder that runs the chains from `start`, counted from 0, to `stop` − 1.

        Args:
            start: the first chain.
            stop: the chain after the last one.
            distinct: merge equal candidates; otherwise each chain's own are returned.

        Raises:
            InvalidInput: this decoder's chains cannot be divided.
        """
        raise InvalidInput(
            f"only NPAD has chains to divide, not {brief(self)}; divide the sentences"
        )

    def merge(self, candidates: Iterable[Hypothesis]) -> list[Hypothesis]:
        """Return the hypotheses for one sentence, best first, from those of all chain ranges.

        Args:
            candidates: in the order of the chains, at least one. Of equal ones the first is kept,
                with their counts added.
        """
        raise InvalidInput(f"only NPAD has chains to merge, not {brief(self)}")

    def check(self, model: Model[Any]) -> None:
        """Raise InvalidInput if a model lacks what the decoder needs, such as a noise site."""
        for part in self.parts:
            part.check(model)

    def all_candidates(self) -> Decoder:
        """Return a copy of this decoder that returns all its finished hypotheses."""
        return self

    def with_seed(self, seed: int) -> Decoder:
        """Return this decoder with another seed, also in its parts; itself if it has no seed."""
        changes: dict[str, Any] = {}
        own: tuple[Field[Any], ...] = fields(self)  # type: ignore[arg-type]
        for field in own:
            value = getattr(self, field.name)
            if field.name == "seed":
                changes["seed"] = seed
            elif isinstance(value, Decoder):
                changes[field.name] = value.with_seed(seed)
            elif isinstance(value, tuple) and all(isinstance(part, Decoder) for part in value):
                changes[field.name] = tuple(part.with_seed(seed) for part in value)
        changed = any(getattr(self, name) != value for name, value in changes.items())
        return replace(self, **changes) if changed else self  # type: ignore[type-var]

    def with_texts(self, compared: TextOf, output: TextOf | None = None) -> Decoder:
        """Return this decoder with functions from tokens to text, where it has none of its own.

        Args:
            compared: the text that its MBR compares; by default MBR compares tokens.
            output: the text of an output; None leaves it as it is.
        """
        selector = getattr(self, "selector", None)
        taking = getattr(selector, "with_texts", None)
        changed = selector if taking is None else taking(compared)
        return self if changed is selector else replace(self, selector=changed)  # type: ignore[type-var]

    @classmethod
    def defaults_on(cls, defaults: Any) -> dict[str, Any]:
        """Return the fields whose defaults depend on the model, with the given `Defaults`."""
        return {}


TextOf = Callable[[tuple[int, ...]], str]


class Frontier(Protocol):
    """The state of a search: a frozen dataclass with `width` rows per group.

    `advance` is a pure tensor function without host synchronisation, so that several steps can be
    captured in a CUDA graph.
    """

    @property
    def tokens(self) -> Tensor:
        """[groups, width], the tokens to read next."""

    @property
    def history(self) -> History:
        """The tokens so far."""

    @property
    def broken(self) -> Tensor:
        """[], whether the logits of a live row were invalid (NaN, +inf, all −inf) at any step."""

    def advance(self, predicted: Prediction) -> tuple[Any, Tensor | None]:
        """Return the next frontier, and the rows that it continues (None: the same rows).

        predicted: the distribution of the next token for rows [groups, width].
        """

    def done(self) -> Tensor:
        """[groups], whether further steps cannot change the result."""

    def groups(self, index: Tensor) -> Any:
        """Return the given groups alone."""

    def hypotheses(self) -> Hypotheses:
        """Return the hypotheses."""


def has_candidates(kind: type[Decoder]) -> bool:
    """Return whether decoders of a class have several hypotheses that a selector can rank."""
    return kind.returns_several or kind.all_candidates is not Decoder.all_candidates


def ensure_decoder(decoder: object, name: str = "decoder") -> None:
    """Require a decoder, and not its class or its name."""
    if isinstance(decoder, type) and issubclass(decoder, Decoder):
        kind = decoder.__name__
        raise InvalidInput(f"{name} must be a decoder: write {kind}(), not {kind}")
    if not isinstance(decoder, Decoder):
        raise InvalidInput(f"{name} must be a Decoder, such as Beam(5), not {brief(decoder)}")
