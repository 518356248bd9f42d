"""The base class of all decoders, and the protocol of a search frontier."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields
from typing import Any, ClassVar, Protocol

from torch import Tensor

from npad.engine.next_token import Prediction
from npad.errors import InvalidInput
from npad.model import Model
from npad.search.history import History
from npad.search.hypotheses import Hypotheses
from npad.search.rows import Problems
from npad.specs import name_of_kind
from npad.validation import brief


class Decoder(ABC):
    """A frozen dataclass whose fields are hyper-parameters; `search` receives the data."""

    rescores: ClassVar[bool] = False  # whether `search` returns the clean model's scores
    returns_several: ClassVar[bool] = False  # whether it returns several hypotheses by default
    compared: ClassVar[bool] = True  # whether `npad compare` and `npad bench` run it by default

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
    def rows(self) -> int:
        """The largest number of rows that a problem takes at a time."""
        return 1

    @property
    def title(self) -> str:
        """A short name for tables, such as `beam, 5`, from fields with a `title` in metadata."""
        shown = [field for field in fields(self) if "title" in field.metadata]  # type: ignore[arg-type]
        values = (field.metadata["title"].format(getattr(self, field.name)) for field in shown)
        return ", ".join([name_of_kind(type(self)), *values])

    def all_candidates(self) -> Decoder:
        """Return a copy of this decoder that returns all its finished hypotheses."""
        return self


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
