"""Temperature fallback: decode again, at a higher temperature, where an output looks wrong.

The recipe of Whisper (Radford et al., 2022, section 4.5).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from npad.errors import InvalidInput
from npad.hypotheses import Hypotheses, Hypothesis, join_groups
from npad.model import Model
from npad.rows import Problems, rows_of
from npad.search.decoder import Cost, Decoder, TextOf
from npad.search.greedy import Greedy
from npad.search.sampling import Sampling
from npad.selectors import LengthNormalised
from npad.validation import MAX_SEED, brief

SEED_STRIDE = 1_000_003  # between the seeds of two temperatures
TEMPERATURES = (0.2, 0.4, 0.6, 0.8, 1.0)


@dataclass(frozen=True)
class Fallback(Decoder):
    """Run a decoder; where its output fails, sample instead.

    Where the output of `first` fails, it samples at each temperature until an output passes. An
    output fails if its mean log-probability a token, the end token included, is below
    `min_log_prob`, or if its text compresses more than `max_compression` times, as the same words
    over and over do. Of `samples`, the one of the highest mean log-probability is kept. If none
    passes, the last temperature's is returned. Cost: `samples` rows for the sentences that fail, a
    search for each temperature.

    Attributes:
        first: the decoder at temperature 0; Whisper's command runs `Beam(5)`.
        samples: drawn at each temperature.
        temperatures: above 0, in the order they are tried.
        min_log_prob: in nats a token.
        max_compression: bytes of the text over its bytes compressed by zlib.
        seed: the seed of the draws.
        text: a function from tokens to text; by default each token is a character. `Transcriber`
            fills it in.
    """

    compared: ClassVar[bool] = False
    everyday: ClassVar[bool] = True
    example: ClassVar[str] = "--first beam --temperatures 0.2,0.6,1"
    page: ClassVar[str] = "huggingface.md#speech"

    first: Decoder = field(
        default_factory=Greedy, metadata={"help": "the decoder before any sampling"}
    )
    samples: int = field(default=5, metadata={"help": "samples at each temperature", "minimum": 1})
    temperatures: tuple[float, ...] = field(
        default=TEMPERATURES,
        metadata={"help": "temperatures, in the order they are tried", "above": 0},
    )
    min_log_prob: float = field(
        default=-1.0, metadata={"help": "mean log-probability below which an output fails"}
    )
    max_compression: float = field(
        default=2.4, metadata={"help": "compression ratio above which an output fails", "above": 0}
    )
    seed: int = field(
        default=0, metadata={"help": "another seed draws other randomness", "maximum": MAX_SEED}
    )
    text: Callable[[tuple[int, ...]], str] | None = field(
        default=None, metadata={"rule": "a function from tokens to text, or None"}
    )

    @property
    def rows(self) -> int:
        return max(self.first.rows, self.samples)

    @property
    def cost(self) -> Cost:
        return self.first.cost + Cost(self.samples * len(self.temperatures))

    def with_texts(self, compared: TextOf, output: TextOf | None = None) -> Fallback:
        return replace(self, text=output) if self.text is None and output is not None else self

    def search(self, model: Model[Any], state: Any, problems: Problems) -> Hypotheses:
        found = _best(self.first.search(model, state, problems).cpu())
        for number, temperature in enumerate(self.temperatures, 1):
            failed = self.fails(found)
            if not failed.any():
                break
            seed = (int(self.seed) + SEED_STRIDE * number) % (MAX_SEED + 1)
            sampling = Sampling(self.samples, temperature, seed=seed)
            # Chains of a sentence are searched together, though only some of them may have failed.
            sentences = failed.view(-1, problems.per_sentence).any(1).nonzero().squeeze(1)
            groups = rows_of(sentences, problems.per_sentence)
            rows = groups.to(problems.ids.device)
            part = replace(problems, ids=problems.ids[rows], chains=problems.chains[rows])
            again = _best(sampling.search(model, model.select(state, rows), part).cpu())
            replaced = failed[groups]
            kept = (~failed).nonzero().squeeze(1)
            pieces = [(groups[replaced], again.groups(replaced))]
            pieces += [(kept, found.groups(kept))] if len(kept) else []
            found = join_groups(pieces, model.special.pad)
        return found

    def fails(self, found: Hypotheses) -> Tensor:
        """Return whether outputs [groups, 1] fail, [groups]."""
        unlikely = LengthNormalised()(found)[:, 0] < self.min_log_prob
        text = self.text or _characters
        repeats = [
            compression_ratio(_ensure_text(text(hypothesis.tokens))) > self.max_compression
            for hypotheses in found.to_lists()
            for hypothesis in hypotheses or [Hypothesis((), 0.0, finished=False)]
        ]
        return unlikely | torch.tensor(repeats) | ~found.exists[:, 0]


def compression_ratio(text: str) -> float:
    """Return the bytes of a text in UTF-8 over its bytes compressed; 0 for an empty text."""
    content = text.encode(errors="replace")
    return len(content) / len(zlib.compress(content))


def _ensure_text(text: object) -> str:
    if not isinstance(text, str):
        raise InvalidInput(f"Fallback's text function must return a text, not {brief(text)}")
    return text


def _best(hypotheses: Hypotheses) -> Hypotheses:
    """Return the hypothesis of the highest mean log-probability of each group, [groups, 1].

    Of finished ones, if there are any.
    """
    ranked = hypotheses.best_first(LengthNormalised()(hypotheses))
    best = torch.zeros(len(ranked.lengths), 1, dtype=torch.long)
    return replace(ranked.at(best), proven=None)


def _characters(tokens: tuple[int, ...]) -> str:
    """Return tokens as characters, of which UTF-8 has enough for any vocabulary."""
    return "".join(chr(0x100 + token % 0xD000) for token in tokens)
