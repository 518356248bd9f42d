"""Text in, text out: a model together with what turns text into its input and its symbols into text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from npad.decode import decode
from npad.errors import InvalidInput
from npad.hypotheses import Hypothesis
from npad.model import Model
from npad.noise.keyed import word
from npad.search.beam import Beam
from npad.search.decoder import Decoder
from npad.search.npad import NPAD
from npad.selectors import MBR
from npad.signature import signature


@dataclass(frozen=True)
class Translation:
    """What one text became. `alternatives` are the decoder's other hypotheses, best first, without their own."""

    text: str
    log_prob: float
    hypothesis: Hypothesis
    signature: str
    alternatives: tuple[Translation, ...] = ()


@dataclass(frozen=True)
class Translator:
    """A model with its text: `encode` makes the model's source of texts, `detokenise` text of a hypothesis' symbols."""

    model: Model[Any]
    encode: Callable[[Sequence[str]], Any]
    detokenise: Callable[[tuple[int, ...]], str]

    def translate(
        self, texts: Sequence[str], decoder: Decoder | None = None, max_length: int = 200
    ) -> list[Translation]:
        """Translate texts, in their order. A text's noise depends on the text alone, not on its neighbours."""
        if isinstance(texts, str):
            raise InvalidInput(f"translate takes a list of texts; write translate([{texts!r}])")
        for text in texts:
            if not isinstance(text, str):
                raise InvalidInput(f"translate takes texts, not {text!r}")
        decoder = Beam() if decoder is None else decoder
        ids = [word(text) for text in texts]
        source = self.encode(texts)
        if len(source) != len(texts):
            raise InvalidInput(f"encode must return one sentence a text: it made {len(source)} of {len(texts)}")
        found = decode(self.model, source, self._in_words(decoder), max_length, ids)
        how = signature(decoder, self.model)
        return [self._translation(hypotheses, how) for hypotheses in found]

    def _in_words(self, decoder: Decoder) -> Decoder:
        """MBR compares texts, where there are texts."""
        if isinstance(decoder, NPAD) and isinstance(decoder.selector, MBR) and decoder.selector.text is None:
            return replace(decoder, selector=replace(decoder.selector, text=self.detokenise))
        return decoder

    def _translation(self, hypotheses: list[Hypothesis], how: str) -> Translation:
        best, *rest = [Translation(self.detokenise(one.tokens), one.log_prob, one, how) for one in hypotheses]
        return Translation(best.text, best.log_prob, best.hypothesis, how, tuple(rest))


def load(name: str) -> Translator:
    """A translator by name. `toy` is the built-in exact model: four German phrases, for a first look."""
    from npad.models import toy

    if name != "toy":
        raise InvalidInput(f"npad has no model {name!r}; it offers 'toy'")
    return Translator(toy.model(), list, toy.text)
