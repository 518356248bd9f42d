"""Several decoders on the same sentences: what any of them finds, the most probable first."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from npad.errors import InvalidInput
from npad.model import Model
from npad.search.decoder import Decoder, ensure_decoder
from npad.search.greedy import Greedy
from npad.search.hypotheses import Found, join
from npad.search.npad import NPAD
from npad.search.rows import Problems
from npad.search.sampling import Sampling
from npad.validation import brief


@dataclass(frozen=True)
class BestOf(Decoder):
    """Run each decoder and return all they find, duplicates kept. Cost: the sum of theirs, one after another.

    `BestOf((Greedy(), Sampling(49, temperature=0.5)))` is sampling that is never worse than greedy search, as NPAD's
    clean chain is for noise.
    """

    returns_several: ClassVar[bool] = True
    compared: ClassVar[bool] = False

    decoders: tuple[Decoder, ...] = field(
        default=(Greedy(), Sampling(49, temperature=0.5)),
        metadata={"help": "decoders with commas between them, such as greedy,beam(width=5)"},
    )

    def __post_init__(self) -> None:
        if not isinstance(self.decoders, tuple) or not self.decoders:
            raise InvalidInput(
                f"BestOf needs a tuple of decoders, such as (Greedy(), Beam(5)), not {brief(self.decoders)}"
            )
        for one in self.decoders:
            ensure_decoder(one, "each of BestOf's decoders")
            if isinstance(one, NPAD):
                raise InvalidInput("BestOf cannot hold NPAD; put it inside: NPAD(BestOf(…))")

    @property
    def rows(self) -> int:
        return max(one.rows for one in self.decoders)

    def all_candidates(self) -> BestOf:
        return BestOf(tuple(one.all_candidates() for one in self.decoders))

    def search(self, model: Model[Any], state: Any, problems: Problems) -> Found:
        found = [replace(one.search(model, state, problems), proven=None) for one in self.decoders]
        return join([one.cpu() for one in found], model.special.pad).best_first()
