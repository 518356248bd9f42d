"""Search with the model's actor, which pushes the state before every transition."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from npad.engine.cuda_graphs import bucket, graphs_of
from npad.errors import InvalidInput
from npad.hypotheses import Hypotheses
from npad.model import Capabilities, Layout, Model
from npad.rescoring.strategies import rescore
from npad.rows import Problems
from npad.search.decoder import Decoder
from npad.search.greedy import Greedy
from npad.search.paired import pairs_pay, steered_pairs


@dataclass(frozen=True)
class SteeredSearch(Decoder):
    """Run a decoder over the model, steered by its trained actor.

    The clean model scores the results. As the inner decoder of NPAD it has noise on top of the
    pushes. Cost: that of the inner decoder, and one pass over what it returns, or a clean row
    beside each row where that is faster.
    """

    label: ClassVar[str] = "steered"
    rescores: ClassVar[bool] = True
    compared: ClassVar[bool] = False
    page: ClassVar[str] = "actors.md#decode-with-an-actor"

    inner: Decoder = field(
        default_factory=Greedy, metadata={"help": "what runs with the model's actor"}
    )

    def ensure_allows(self, part: Decoder) -> None:
        for inner in part.within():
            if inner.chains or isinstance(inner, type(self)):
                kind = type(inner).__name__
                raise InvalidInput(
                    f"SteeredSearch cannot hold {kind}; write NPAD(SteeredSearch(…))"
                )

    @property
    def title(self) -> str:
        return f"steered {self.inner.title}"

    def all_candidates(self) -> SteeredSearch:
        return SteeredSearch(self.inner.all_candidates())

    def search(self, model: Model[Any], state: Any, problems: Problems) -> Hypotheses:
        capabilities = Capabilities.of(model)
        if capabilities.steer is None:
            raise InvalidInput(
                f"{capabilities.name} has no actor; train one with npad train-actor, or choose "
                "another decoder"
            )
        if capabilities.noisy:  # a chain of NPAD, which re-scores the candidates of all chains
            return self.inner.search(*capabilities.steer(state, len(problems)), problems)
        with graphs_of(model, capabilities) as graphs:
            steered: tuple[Any, ...]
            # Parts that score by themselves need the states of the steered model alone.
            plain = not any(part.rescores for part in self.inner.within())
            if plain and pairs_pay(capabilities, len(problems) * self.inner.rows):
                layout = Layout(len(problems) // problems.per_sentence, problems.per_sentence)
                start = partial(steered_pairs, model, layout)
                if graphs is None or bucket(layout.sentences) != layout.sentences:
                    steered = start(state)
                else:
                    key = "start steered", layout
                    steered = graphs.call(start, model, key, state, private=True)
            else:
                steered = capabilities.steer(state, len(problems))
            steered_model, steered_state = steered
            hypotheses = self.inner.search(steered_model, steered_state, problems)
        return rescore(model, state, hypotheses).best_first()
