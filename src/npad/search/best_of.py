"""Best of several decoders: their hypotheses together, the most probable first."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from npad.errors import InvalidInput
from npad.hypotheses import Hypotheses, join
from npad.model import Model
from npad.rows import Problems
from npad.search.decoder import Decoder, ensure_decoder
from npad.search.greedy import Greedy
from npad.search.sampling import Sampling
from npad.validation import brief


@dataclass(frozen=True)
class BestOf(Decoder):
    """Run several decoders and return all their hypotheses.

    They run in turn, and duplicates are kept. `BestOf((Greedy(), Sampling(49, temperature=0.5)))`
    is sampling that is never worse than greedy search, just as NPAD's clean chain makes NPAD never
    worse. Cost: the sum of the decoders' costs.
    """

    returns_several: ClassVar[bool] = True
    compared: ClassVar[bool] = False
    example: ClassVar[str] = '--inner "greedy,sampling(samples=49)"'
    page: ClassVar[str] = "decoding.md#selectors"

    decoders: tuple[Decoder, ...] = field(
        default=(Greedy(), Sampling(49, temperature=0.5)),
        metadata={
            "help": "decoders with commas between them, such as greedy,beam(width=5)",
            "option": "inner",
        },
    )

    def __post_init__(self) -> None:
        if not isinstance(self.decoders, tuple) or not self.decoders:
            raise InvalidInput(
                "BestOf needs a tuple of decoders, such as (Greedy(), Beam(5)), "
                f"not {brief(self.decoders)}"
            )
        for decoder in self.decoders:
            ensure_decoder(decoder, "each of BestOf's decoders")
        super().__post_init__()

    def ensure_allows(self, part: Decoder) -> None:
        if part.chains:
            raise InvalidInput("BestOf cannot hold NPAD; put it inside: NPAD(BestOf(…))")

    def all_candidates(self) -> BestOf:
        return BestOf(tuple(decoder.all_candidates() for decoder in self.decoders))

    def search(self, model: Model[Any], state: Any, problems: Problems) -> Hypotheses:
        results = [decoder.search(model, state, problems).cpu() for decoder in self.decoders]
        unproven = [replace(hypotheses, proven=None) for hypotheses in results]
        return join(unproven, model.special.pad).best_first()
