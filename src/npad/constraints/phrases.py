"""Forbidden and required phrases.

Forbidden ones are compiled to a table: for each state of a matcher, where every token leads.
Required ones are followed token by token; beams reserve slots for prefixes that have more of them
(dynamic beam allocation; Post & Vilar, 2018), and other searches rank outputs by them.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from npad.constraints.constrained import Rule
from npad.constraints.vocabulary import Vocabulary
from npad.engine.pytree import tree_map
from npad.errors import InvalidInput
from npad.model import Capabilities
from npad.rows import IntArray

BROKEN = -1  # where a transition leads that completes a forbidden phrase
MAX_TABLE = 1 << 26  # entries of a table, states × tokens
FORMS: tuple[Literal["NFC", "NFD"], ...] = ("NFC", "NFD")
STATES_AT_A_TIME = 64  # of a table that is being built
# First bytes of UTF-8 letters that are mostly punctuation: „ “ ” ’ – … « » and emoji.
PUNCTUATION = {0xC2, 0xE2, 0xF0}

# A phrase is a sequence of letters, each in several spellings: "h" or "H", as bytes; or a sequence
# of tokens, each in one.
Spelling = tuple[int, ...]


@dataclass(frozen=True)
class Pattern:
    """A forbidden phrase."""

    letters: tuple[frozenset[Spelling], ...]
    begins_word: bool = False  # only where a word begins
    ends_word: bool = False  # only where a word ends

    @classmethod
    def all_of(cls, text: str, exact: bool) -> list[Pattern]:
        """Return a phrase: exactly as it is, wherever; or whole words in any casing.

        Words are forbidden in both forms of Unicode, with letters composed or decomposed.
        """
        if exact:
            return [cls(tuple(frozenset([tuple(letter.encode())]) for letter in text))]
        text, patterns = text.strip(), []
        composed = unicodedata.normalize("NFC", text)
        begins, ends = (c.isalnum() or c == "_" for c in (composed[0], composed[-1]))
        for form in sorted({text, *(unicodedata.normalize(name, text) for name in FORMS)}):
            cases = ({letter, letter.lower(), letter.upper()} for letter in form)
            letters = (frozenset(tuple(case.encode()) for case in same) for same in cases)
            patterns.append(cls(tuple(letters), begins, ends))
        return patterns


class Item(NamedTuple):
    """A phrase that may have begun: the letter it has come to, and the rest of a letter's bytes."""

    pattern: int
    letter: int
    rest: Spelling


class Memory(NamedTuple):
    """What a matcher remembers."""

    items: frozenset[Item]
    in_word: bool  # whether the last letter belongs to a word


class Matcher:
    """A deterministic automaton over units, bytes or tokens, that finds phrases.

    Args:
        patterns: the phrases.
        in_bytes: whether units are bytes.
        most: the states that it may have.

    Attributes:
        units: those that occur in a phrase; all others of a kind are one class.
        next: [states, classes], the next state, or `BROKEN`; the first state is 0.
        broken_by_end: [states], whether a phrase would be complete if the output ended.

    Raises:
        InvalidInput: it has more states.
    """

    def __init__(
        self, patterns: Sequence[Pattern], in_bytes: bool, most: int = sys.maxsize
    ) -> None:
        self.patterns, self.in_bytes = patterns, in_bytes
        spellings = (s for p in patterns for letter in p.letters for s in letter)
        self.units = sorted({unit for spelling in spellings for unit in spelling})
        # representatives of the units in no phrase: a letter, punctuation, the rest of a letter
        others = [self._other(range(256), kind) for kind in range(3)] if in_bytes else [-1]
        self.classes = [*self.units, *others]
        self.begun = [
            {unit: frozenset(self._begun(unit, in_word)) for unit in self.units}
            for in_word in (False, True)
        ]
        states, found = {Memory(frozenset(), False): 0}, [Memory(frozenset(), False)]
        rows: list[list[int]] = []
        while len(rows) < len(found):
            row = []
            for unit in self.classes:
                after = self._after(found[len(rows)], unit)
                if after is not None and after not in states:
                    states[after] = len(found)
                    found.append(after)
                row.append(BROKEN if after is None else states[after])
            rows.append(row)
            if len(found) > most:
                raise InvalidInput(f"its phrases need more than {most:,} states")
        self.next = np.array(rows, dtype=np.int32)
        ended = [any(self._complete(item) for item in state.items) for state in found]
        self.broken_by_end = np.array(ended)

    def class_of(self, units: IntArray) -> IntArray:
        """Return the class of each unit, a column of `next`."""
        known = np.array(self.units, dtype=np.int64)
        places = np.searchsorted(known, units).clip(max=len(known) - 1)
        kinds = np.array([_kind(unit) for unit in range(256)]) if self.in_bytes else None
        other = len(known) + (kinds[units] if kinds is not None else np.zeros_like(units))
        return np.where(known[places] == units, places, other)

    def _other(self, units: range, kind: int) -> int:
        """Return a unit of a kind that is in no phrase; any of the kind if there is none."""
        own = [unit for unit in units if _kind(unit) == kind]
        return next((unit for unit in own if unit not in self.units), own[0])

    def _complete(self, item: Item) -> bool:
        return item.letter == len(self.patterns[item.pattern].letters)

    def _after(self, state: Memory, unit: int) -> Memory | None:
        """Return the state after a unit; None if a phrase is complete."""
        kind = _kind(unit) if self.in_bytes else 0
        in_word = state.in_word
        going = (item for item in state.items if not self._complete(item))
        after = frozenset(item for old in going for item in self._continued(old, unit))
        if kind != REST:  # a letter begins
            if kind == PLAIN and any(map(self._complete, state.items)):
                return None
            after |= self.begun[in_word].get(unit, frozenset())
            in_word = kind == WORD
        for item in after:
            if self._complete(item) and not self.patterns[item.pattern].ends_word:
                return None
        return Memory(after, in_word)

    def _begun(self, unit: int, in_word: bool) -> Iterator[Item]:
        """Yield the phrases that may begin with a unit."""
        for number, pattern in enumerate(self.patterns):
            if not (pattern.begins_word and in_word):
                yield from self._continued(Item(number, 0, ()), unit)

    def _continued(self, item: Item, unit: int) -> Iterator[Item]:
        spellings = [item.rest]
        if not item.rest:
            spellings = list(self.patterns[item.pattern].letters[item.letter])
        for spelling in spellings:
            if spelling[0] == unit:
                rest = spelling[1:]
                yield Item(item.pattern, item.letter + (not rest), rest)


WORD, PLAIN, REST = 0, 1, 2  # a byte that begins a letter of a word, or another one; and the others


def _kind(byte: int) -> int:
    if 0x80 <= byte < 0xC0:
        return REST
    letter = byte >= 0xC0 and byte not in PUNCTUATION
    return WORD if letter or (chr(byte).isalnum() and byte < 0x80) or byte == ord("_") else PLAIN


def forbidding(phrases: Sequence[str], exact: bool, vocabulary: Vocabulary, label: str) -> Table:
    """Return the rule that forbids phrases, whatever tokens they are written in."""
    size = len(vocabulary)
    try:
        patterns = [pattern for phrase in phrases for pattern in Pattern.all_of(phrase, exact)]
        matcher = Matcher(patterns, in_bytes=True, most=MAX_TABLE // size)
    except InvalidInput as error:
        rule = "give fewer or shorter phrases"
        raise InvalidInput(f"{label} forbids too much: {error}; {rule}") from error
    states = len(matcher.next)
    pieces, lengths = vocabulary.table
    longest_first = np.argsort(-lengths, kind="stable")
    classes, lengths = matcher.class_of(pieces)[longest_first], lengths[longest_first]
    leads = np.empty((states, size + 1), dtype=np.int32)
    leads[:, size] = np.arange(states)  # tokens beyond the vocabulary write nothing
    for first in range(0, states, STATES_AT_A_TIME):
        rows = np.arange(first, min(states, first + STATES_AT_A_TIME), dtype=np.int32)
        part = np.repeat(rows[:, None], size, 1)
        for place in range(classes.shape[1]):
            count = int((lengths > place).sum())
            read = matcher.next[part[:, :count], classes[:count, place]]
            part[:, :count] = np.where(part[:, :count] == BROKEN, BROKEN, read)
        leads[rows[:, None], longest_first] = part
    return Table(leads, matcher.broken_by_end, int(leads[0, _first(vocabulary)]), label)


def _first(vocabulary: Vocabulary) -> int:
    """Return a token that writes nothing: where an output begins, no word has begun."""
    return len(vocabulary)


def forbidding_tokens(phrases: Sequence[Sequence[int]], label: str) -> Table:
    """Return the rule that forbids sequences of tokens."""
    letters = [tuple(frozenset([(token,)]) for token in phrase) for phrase in phrases]
    matcher = Matcher([Pattern(own) for own in letters], in_bytes=False)
    tokens = np.arange(max(matcher.units) + 2)  # the last one stands for all tokens beyond
    return Table(matcher.next[:, matcher.class_of(tokens)], matcher.broken_by_end, 0, label)


class Table(Rule):
    """Forbids tokens by a table of where each token leads from each state.

    Args:
        leads: [states, tokens + 1]; `BROKEN` is forbidden, and the last column is of all tokens
            beyond.
        not_end: [states], where the end token is forbidden.
        start: the first state.
        label: for messages and signatures.
    """

    masks = True

    def __init__(self, leads: NDArray[Any], not_end: NDArray[Any], start: int, label: str) -> None:
        self.first, self._label = start, label
        self.leads = torch.from_numpy(np.ascontiguousarray(leads))
        self.not_end = torch.from_numpy(not_end)
        self._on: dict[Any, tuple[Tensor, Tensor]] = {}

    @property
    def label(self) -> str:
        return self._label

    def start(self, model: Any, source: Any) -> Tensor:
        return torch.full((len(source),), self.first, device=Capabilities.of(model).device)

    def read(self, memory: Tensor, tokens: Tensor) -> Tensor:
        leads = self._tensors("leads", tokens.device, lambda: (self.leads, self.leads[:1]))[0]
        size = leads.shape[1]
        places = torch.add(tokens.clamp(max=size - 1), memory, alpha=size)
        after = leads.flatten().index_select(0, places)
        return after.clamp(min=0).long()  # a forbidden token is read where nothing else is possible

    def apply(self, scores: Tensor, memory: Tensor, eos: int, first: bool) -> Tensor:
        size = scores.shape[-1]

        def masks() -> tuple[Tensor, Tensor]:
            forbidden = self.leads[:, : min(size, self.leads.shape[1])] == BROKEN
            beyond = (self.leads[:, -1:] == BROKEN).expand(-1, size - forbidden.shape[1])
            forbidden = torch.cat([forbidden, beyond], 1)
            forbidden[:, eos] = self.not_end
            return forbidden, forbidden.any(1)

        forbidden, restricts = self._tensors((size, eos), scores.device, masks)
        if scores.is_cpu and not restricts.index_select(0, memory).any():
            return scores
        return scores.masked_fill(forbidden[memory], -torch.inf)

    def _tensors(self, key: Any, device: torch.device, make: Any) -> tuple[Tensor, Tensor]:
        """Return a pair of tensors on a device, made once."""
        if (key, device) not in self._on:
            self._on[key, device] = tuple(x.to(device) for x in make())
        return self._on[key, device]


@dataclass(frozen=True)
class PhraseProgress:
    """How far each row has come with the phrases that its output must have.

    Each phrase is matched as Knuth, Morris and Pratt do.
    """

    phrases: Tensor  # [..., phrases, longest], padded with −1
    lengths: Tensor  # [..., phrases], 0 for padding
    fallback: Tensor  # [..., phrases, longest], the matched tokens that remain after a mismatch
    matched: Tensor  # [..., phrases], tokens of the phrase that have just been written
    done: Tensor  # [..., phrases], whether the phrase has been written

    @classmethod
    def of(
        cls, required: Sequence[Sequence[Sequence[int]]], device: torch.device
    ) -> PhraseProgress:
        """Return the beginning, from the token lists that each row requires."""
        count = max(1, *map(len, required))
        longest = max((len(phrase) for phrases in required for phrase in phrases), default=0) + 1
        phrases = torch.full((len(required), count, longest), -1)
        fallback = torch.zeros_like(phrases)
        for row, own in enumerate(required):
            for place, phrase in enumerate(own):
                phrases[row, place, : len(phrase)] = torch.tensor(phrase)
                fallback[row, place, : len(phrase)] = torch.tensor(_fallback(phrase))
        lengths = (phrases >= 0).sum(-1)
        start = cls(phrases, lengths, fallback, torch.zeros_like(lengths), lengths == 0)
        return tree_map(lambda x: x.to(device), start)

    def read(self, tokens: Tensor) -> PhraseProgress:
        """Return the progress once tokens [...] have been written."""
        matched, token = self.matched, tokens[..., None]
        for _ in range(self.phrases.shape[-1] - 1):
            wrong = (matched > 0) & (_at(self.phrases, matched) != token)
            matched = torch.where(wrong, _at(self.fallback, matched), matched)
        matched = matched + (_at(self.phrases, matched) == token)
        complete = matched == self.lengths
        return replace(self, matched=matched.masked_fill(complete, 0), done=self.done | complete)

    @property
    def met(self) -> Tensor:
        """[...], whether all phrases have been written."""
        return self.done.all(-1)

    @property
    def count(self) -> Tensor:
        """[...], tokens of the phrases that have been written, and of the one that has begun.

        Of several that begin alike, one counts: otherwise writing it to its end would count less.
        """
        written = self.lengths.masked_fill(~self.done, 0).sum(-1)
        return written + self.matched.masked_fill(self.done, 0).amax(-1)

    @property
    def wanted(self) -> Tensor:
        """[..., phrases], the next token of each phrase; −1 if it has been written."""
        return _at(self.phrases, self.matched).masked_fill(self.done, -1)

    def counts_after(self, tokens: Tensor) -> Tensor:
        """Return the count after each of tokens [..., k]."""
        rows = tokens.dim() - 1
        several = tree_map(lambda x: x.unsqueeze(rows).expand(*tokens.shape, *x.shape[rows:]), self)
        return several.read(tokens).count

    def joined(self, other: PhraseProgress) -> PhraseProgress:
        """Return the progress with the phrases of both."""
        longest = max(self.phrases.shape[-1], other.phrases.shape[-1])

        def padded(x: Tensor, value: int) -> Tensor:
            return F.pad(x, (0, longest - x.shape[-1]), value=value)

        return PhraseProgress(
            torch.cat([padded(p.phrases, -1) for p in (self, other)], -2),
            torch.cat([self.lengths, other.lengths], -1),
            torch.cat([padded(p.fallback, 0) for p in (self, other)], -2),
            torch.cat([self.matched, other.matched], -1),
            torch.cat([self.done, other.done], -1),
        )


def _at(x: Tensor, places: Tensor) -> Tensor:
    """Return the entries of x [..., n] at places [...]."""
    return x.gather(-1, places[..., None]).squeeze(-1)


def _fallback(phrase: Sequence[int]) -> list[int]:
    """Return, for each number of matched tokens, how many remain if the next one differs."""
    table = [0] * len(phrase)
    length = 0
    for place in range(1, len(phrase)):
        table[place] = length
        while length and phrase[place] != phrase[length]:
            length = table[length]
        length += phrase[place] == phrase[length]
    return table


class Required(Rule):
    """Ranks outputs without some of their phrases below all others.

    Args:
        phrases: the tokens of each phrase, of each sentence; of one sentence: of all.
        label: for messages and signatures.
    """

    masks = soft = judges = True

    def __init__(self, phrases: Sequence[Sequence[Sequence[int]]], label: str) -> None:
        self.phrases, self._label = phrases, label

    @property
    def label(self) -> str:
        return self._label

    def key(self) -> Any:
        return Required  # the phrases are in the state

    def start(self, model: Any, source: Any) -> PhraseProgress:
        phrases = [*self.phrases] * len(source) if len(self.phrases) == 1 else self.phrases
        if len(phrases) != len(source):
            raise InvalidInput(f"phrases are of {len(phrases)} sentences, not {len(source)}")
        return PhraseProgress.of(phrases, Capabilities.of(model).device)

    def read(self, memory: PhraseProgress, tokens: Tensor) -> PhraseProgress:
        return memory.read(tokens)

    def apply(self, scores: Tensor, memory: PhraseProgress, eos: int, first: bool) -> Tensor:
        return scores

    def met(self, memory: PhraseProgress) -> Tensor:
        return memory.met

    def progress(self, memory: PhraseProgress) -> PhraseProgress:
        return memory
