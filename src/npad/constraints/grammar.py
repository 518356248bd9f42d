"""Regular expressions, JSON schemas and grammars, through llguidance: all that imports it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from npad.constraints.constrained import Rule
from npad.constraints.vocabulary import Vocabulary
from npad.errors import InvalidInput, missing_library
from npad.model import Capabilities
from npad.validation import brief

SPACE = '" " '  # in a grammar of llguidance
BEGUN, ENDED = 0, 1  # numbers of prefixes: the empty one, and all that have ended


def grammar_of(kind: str, text: str, leading: bool) -> str:
    """Return a grammar of llguidance whose outputs may begin with a space.

    Args:
        kind: "regex", "json-schema" or "lark".
        text: the expression, the schema or the grammar.
        leading: whether outputs begin with a space that is no part of the text.

    Raises:
        InvalidInput: it is malformed.
    """
    if kind == "regex":
        if (len(text) - len(text.rstrip("\\"))) % 2:
            raise InvalidInput(f"the regular expression {brief(text, 60)} ends in half an escape")
        body = json.loads(_llguidance().LLMatcher.grammar_from_regex(text))["grammars"][0]
    elif kind == "json-schema":
        try:
            body = {"json_schema": json.loads(text)}
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"{brief(text, 60)} is not JSON: {error}") from error
    else:
        body = {"lark_grammar": text}
    # Without forcing, all tokens that spell an allowed text are allowed, not the canonical ones.
    start = f'%llguidance {{"no_forcing": true}}\nstart: {SPACE * leading}@body'
    return json.dumps({"grammars": [{"lark_grammar": start}, {**body, "name": "body"}]})


@dataclass(frozen=True, eq=False)
class Tokens:
    """A vocabulary as llguidance reads it."""

    vocabulary: Vocabulary
    eos_token_id: int
    bos_token_id: int | None = None

    @property
    def tokens(self) -> list[bytes]:
        """What each token writes; those that write nothing have a name that no text has."""
        pieces = enumerate(self.vocabulary.pieces)
        return [piece or b"\xff[%d]" % token for token, piece in pieces]

    @property
    def special_token_ids(self) -> list[int]:
        return [token for token, piece in enumerate(self.vocabulary.pieces) if not piece]

    def __call__(self, text: str) -> list[int]:
        if not isinstance(text, str):
            raise TypeError("a text is needed")
        return self.vocabulary.encode([text])[0]


def _llguidance() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise missing_library("grammars need llguidance", "grammar") from error
    return llguidance


@lru_cache(4)
def _tokenizer(vocabulary: Vocabulary, eos: int) -> Any:
    """Return a vocabulary compiled by llguidance."""
    llguidance = _llguidance()
    wrapper = llguidance.TokenizerWrapper(Tokens(vocabulary, eos))
    return llguidance.LLTokenizer(wrapper, n_vocab=len(vocabulary), eos_token=eos)


class Matchers:
    """A matcher of llguidance for each distinct prefix of a search, by number."""

    def __init__(self, root: Any, eos: int) -> None:
        self.matchers, self.eos = [root, None], eos
        self.numbers: dict[tuple[int, int], int] = {}

    def after(self, number: int, token: int) -> int:
        """Return the number of a prefix with one more token."""
        key = number, token
        if number == ENDED or token == self.eos:
            return ENDED
        if key not in self.numbers:
            matcher = self.matchers[number].deep_copy()
            self.numbers[key] = len(self.matchers) if matcher.consume_token(token) else ENDED
            if self.numbers[key] != ENDED:
                self.matchers.append(matcher)
        return self.numbers[key]


class Matched(NamedTuple):
    """What a grammar remembers of rows."""

    numbers: Tensor  # [rows], of their prefixes
    matchers: Matchers


class GrammarRule(Rule):
    """Lets only those tokens follow that a grammar allows.

    Args:
        grammar: as `grammar_of` returns it.
        vocabulary: of the model's outputs.
        eos: the model's end token.
        label: for messages and signatures.

    Raises:
        InvalidInput: llguidance is missing, or refuses the grammar.
    """

    masks = finishes = True
    capturable = False

    def __init__(self, grammar: str, vocabulary: Vocabulary, eos: int, label: str) -> None:
        llguidance = _llguidance()
        self.tokenizer = _tokenizer(vocabulary, eos)
        self.root = llguidance.LLMatcher(self.tokenizer, grammar, log_level=0)
        if self.root.is_error():
            reason = brief(self.root.get_error(), 300)
            raise InvalidInput(f"{label} is not a grammar that llguidance reads: {reason}")
        self.executor = llguidance.LLExecutor(num_threads=1)
        self.size, self.eos, self._label = len(vocabulary), eos, label

    @property
    def label(self) -> str:
        return self._label

    def start(self, model: Any, source: Any) -> Matched:
        device = Capabilities.of(model).device
        begun = torch.full((len(source),), BEGUN, device=device)
        return Matched(begun, Matchers(self.root, self.eos))

    def read(self, memory: Matched, tokens: Tensor) -> Matched:
        pairs = zip(memory.numbers.tolist(), tokens.tolist(), strict=True)
        numbers = [memory.matchers.after(*pair) for pair in pairs]
        return memory._replace(numbers=torch.tensor(numbers, device=tokens.device))

    def apply(self, scores: Tensor, memory: Matched, eos: int, first: bool) -> Tensor:
        distinct, places = torch.unique(memory.numbers, return_inverse=True)
        forbidden = torch.ones(len(distinct), scores.shape[-1], dtype=torch.bool)
        size = min(self.size, scores.shape[-1])
        numbers = distinct.tolist()
        forbidden[:, :size] = self._forbidden(memory.matchers, numbers)[:, :size]
        return scores.masked_fill(forbidden.to(scores.device)[places], -torch.inf)

    def _forbidden(self, matchers: Matchers, numbers: Sequence[int]) -> Tensor:
        """Return which tokens prefixes forbid [prefixes, V], computed in one call."""
        from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask_par

        bits = allocate_token_bitmask(len(numbers), self.size)
        own = [(matchers.matchers[n], row) for row, n in enumerate(numbers) if n != ENDED]
        if own:
            fill_next_token_bitmask_par(self.executor, own, bits)
        for matcher, row in own:
            if matcher.is_error():  # then it allows the end of any text
                bits[row] = 0
        allowed = np.unpackbits(bits.view(np.uint8), axis=1, count=self.size, bitorder="little")
        return torch.from_numpy(allowed == 0)
