"""A bench that also measures entropy, search errors, and models trained with noise."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import cache, partial

from npad.metrics.metric import TIE
from npad.pipelines.translation import Translator
from npad.reproduce.bench import Bench, decoder_signature
from npad.reproduce.record import Form, is_number
from npad.search.decoder import Decoder
from npad.search.exact import Exact
from studies.beyond.entropy import entropy_by_step

PAIRS: Form = [(is_number, lambda value: value is not None)]
Noisy = Callable[[float], Translator]  # returns the model trained with noise of a σ₀
CALLS_PER_ROW = 20  # model calls of one row of a search, about the length of an output


class BeyondBench(Bench):
    """Measures what the sections of `studies.beyond` show."""

    def trained_with(self, sigma: float, noisy: Noisy | None) -> Bench:
        """Return a bench of the model that was trained with noise of σ₀; 0 for this one."""
        if not sigma:
            return self
        bench = copy(self)
        bench.kind, bench.outputs = ("trained", sigma), f"outputs-{sigma:g}"
        bench.translator = None if noisy is None else cache(partial(noisy, sigma))
        return bench

    def entropy(self, set_name: str) -> list[tuple[float, int]]:
        """Return the mean entropy in nats at each step of the greedy outputs, and their number."""
        measure = partial(self._entropy, set_name)
        steps = self.result(("entropy", set_name), measure, PAIRS, [[1.0, 1]])
        return [(mean, count) for mean, count in steps]

    def exact(self, set_name: str, sentences: int, budget: int) -> list[tuple[float, bool]]:
        """Return the best log-probability of the first sentences, and whether it is proven."""
        key, measure = ("exact", set_name, sentences, budget), partial(self._exact, set_name)
        expected, rows = [[-1.0, True]] * sentences, sentences * budget / CALLS_PER_ROW
        optima = self.result(key, partial(measure, sentences, budget), PAIRS, expected, rows)
        return [(log_prob, proven) for log_prob, proven in optima]

    def search_errors(
        self, set_name: str, decoder: Decoder, sentences: int, budget: int
    ) -> float | None:
        """Return the share of sentences with a proven optimum that the decoder missed.

        An unfinished output is a miss. None if no optimum is proven.
        """

        def measure() -> float | None:
            outputs = self.entries(set_name, decoder)
            optima = self.exact(set_name, sentences, budget)
            missed = [
                not finished or log_prob < optimum - TIE
                for (optimum, proven), (log_prob, _, finished) in zip(optima, outputs, strict=False)
                if proven
            ]
            return float(sum(missed)) / len(missed) if missed else None

        key = ("errors", set_name, decoder_signature(decoder), sentences, budget)
        share: float | None = self.result(
            key, measure, lambda value: value is None or is_number(value)
        )
        return share

    def _exact(self, set_name: str, sentences: int, budget: int) -> list[tuple[float, bool]]:
        sources = self.sets[set_name].sources[:sentences]
        translations = self.model().translate(sources, Exact(budget), self.limits.max_length)
        return [
            (translation.log_prob, bool(translation.hypothesis.proven))
            for translation in translations
        ]

    def _entropy(self, set_name: str) -> list[tuple[float, int]]:
        return entropy_by_step(self.model(), self.sets[set_name].sources, self.limits.max_length)
