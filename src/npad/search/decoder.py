"""What every decoder is: hyper-parameters and a `search`; and what a search's frontier is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields
from typing import Any, ClassVar, Protocol

from torch import Tensor

from npad.engine.next_token import Prediction
from npad.errors import InvalidInput
from npad.model import Model
from npad.search.history import History
from npad.search.hypotheses import Found
from npad.search.rows import Problems
from npad.specs import name_of_kind
from npad.validation import brief


class Decoder(ABC):
    """A frozen dataclass whose fields are hyper-parameters; `search` receives the data."""

    rescores: ClassVar[bool] = False  # whether `search` returns the clean model's scores
    returns_several: ClassVar[bool] = False  # whether it returns more than its best unasked
    compared: ClassVar[bool] = True  # whether `npad compare` and `npad bench` show it unasked

    @abstractmethod
    def search(self, model: Model[Any], state: Any, problems: Problems) -> Found:
        """Solve each problem from its row of `state`, best first; `state` is never stepped."""

    @property
    def rows(self) -> int:
        """The most rows one problem takes at a time."""
        return 1

    @property
    def title(self) -> str:
        """A short name for tables, such as `beam, 5`: the fields whose metadata has a `title`."""
        shown = [field for field in fields(self) if "title" in field.metadata]  # type: ignore[arg-type]
        values = (field.metadata["title"].format(getattr(self, field.name)) for field in shown)
        return ", ".join([name_of_kind(type(self)), *values])

    def all_candidates(self) -> Decoder:
        """Return this decoder, returning everything it finishes instead of its best."""
        return self


class Frontier(Protocol):
    """Where a search stands: a frozen dataclass with `width` rows for each group.

    One `advance` is a pure tensor function without host synchronisation, so that several can be
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
        """Whether a row that mattered predicted no distribution, at any step so far."""

    def advance(self, predicted: Prediction) -> tuple[Any, Tensor | None]:
        """Return the next frontier, and the rows that it continues (None: each its own).

        predicted: the next tokens of the rows [groups, width].
        """

    def done(self) -> Tensor:
        """[groups], whether more steps would change nothing."""

    def groups(self, index: Tensor) -> Any:
        """Return the given groups alone."""

    def found(self) -> Found:
        """Return the hypotheses."""


def ensure_decoder(decoder: object, name: str = "decoder") -> None:
    """Require a decoder, and not its class or its name."""
    if isinstance(decoder, type) and issubclass(decoder, Decoder):
        kind = decoder.__name__
        raise InvalidInput(f"{name} must be a decoder: write {kind}(), not {kind}")
    if not isinstance(decoder, Decoder):
        raise InvalidInput(
            f"{name} must be one of npad's or another Decoder, such as Beam(5), not {brief(decoder)}"
        )
