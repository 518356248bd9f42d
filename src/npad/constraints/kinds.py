"""Constraints on outputs, as users state them: texts, or tokens where a model has no texts."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np

from npad.constraints.automata import FREE, ROOT, Automaton, edges_of, trie_of
from npad.constraints.constrained import Constrained, Rule
from npad.constraints.grammar import GrammarRule, grammar_of
from npad.constraints.phrases import Required, Table, forbidding, forbidding_tokens
from npad.constraints.vocabulary import Vocabulary
from npad.errors import InvalidInput
from npad.validation import brief, counted, did_you_mean, ensure_choice

Phrase = str | tuple[int, ...]  # a text, or its tokens
CACHED = 16  # constraints whose automata are kept
TABLES = 4  # forbidden phrases whose tables are kept: each may have a third of a gigabyte
ENCODED = 1 << 14  # choices whose tokens are lists at a time: tokenizers take much memory for each
FEW = 3  # phrases that messages list
MAX_REQUIRED = 16  # phrases that an output must have: beams share their slots between them
SHOWN = 40  # characters of a phrase in messages and signatures


@dataclass(frozen=True)
class Context:
    """What constraints on texts are bound to.

    Attributes:
        vocabulary: of the model's outputs.
        sources: the texts of a batch, in their order.
        prefixes: what the output of each must begin with.
    """

    vocabulary: Vocabulary
    sources: Sequence[str] = ()
    prefixes: Sequence[str] = ()


class Constraint(ABC):
    """What every output must satisfy. `a & b` requires both."""

    @abstractmethod
    def rules(self, eos: int, context: Context | None) -> list[Rule]:
        """Return the rules that enforce it.

        Args:
            eos: the model's end token.
            context: the vocabulary and the texts; None for a constraint that is given in tokens.

        Raises:
            InvalidInput: it needs a vocabulary, or breaks a limit.
        """

    @abstractmethod
    def __str__(self) -> str:
        """Return its spec, shortened where it is long: for messages and signatures."""

    def __and__(self, other: Constraint) -> Constraint:
        return Both(self, other)


@dataclass(frozen=True)
class Both(Constraint):
    """Two constraints that every output must satisfy."""

    first: Constraint
    second: Constraint

    def rules(self, eos: int, context: Context | None) -> list[Rule]:
        return [*self.first.rules(eos, context), *self.second.rules(eos, context)]

    def __str__(self) -> str:
        return f"{self.first}&{self.second}"


@dataclass(frozen=True)
class Prefix(Constraint):
    """Outputs begin with a text, or each sentence's with its own.

    The text need not end where a token does: the model may complete its last word, or go on behind
    it. Prefixes given in tokens are written as they are.

    Attributes:
        text: what all outputs begin with; or a tuple of tokens.
    """

    text: Phrase

    def __post_init__(self) -> None:
        if not isinstance(self.text, str | tuple):
            raise InvalidInput(f"a prefix must be a text or a tuple of tokens, not {self.text!r}")

    def rules(self, eos: int, context: Context | None) -> list[Rule]:
        return [prefix_rule([self.text], None if context is None else context.vocabulary)]

    def __str__(self) -> str:
        return f"prefix({shown(self.text)})"


def prefix_rule(prefixes: Sequence[Phrase], vocabulary: Vocabulary | None) -> Automaton:
    """Return the rule that each sentence's output begins with its prefix, or all with the one."""
    states: dict[Any, int] = {b"": FREE}
    triples: list[Sequence[Sequence[int]]] = []
    waiting: list[bytes] = []

    def state_of(rest: bytes) -> int:
        """Return the state in which bytes are still to be written."""
        if rest not in states:
            states[rest] = ROOT + len(states)
            waiting.append(rest)
        return states[rest]

    starts, decided = [], 0
    for number, prefix in enumerate(prefixes):
        tokens: Sequence[int] = ()
        rest = b""
        if isinstance(prefix, tuple):
            tokens = prefix
        elif prefix:
            tokens, rest = needed(vocabulary, "a prefix").split(prefix)
        decided = max(decided, len(tokens) + len(rest))  # each token writes a byte or more
        chain = [states.setdefault((number, i), ROOT + len(states)) for i in range(len(tokens))]
        chain.append(state_of(rest))
        starts.append(chain[0])
        triples.append((chain[:-1], tokens, chain[1:]))
    while waiting:
        rest = waiting.pop()
        spelled = needed(vocabulary, "a prefix").spelling(rest)
        lefts = [state_of(left) for _, left in spelled]
        triples.append(([states[rest]] * len(spelled), [token for token, _ in spelled], lefts))
    label = f"prefix({shown(prefixes[0])})" if len(prefixes) == 1 else "prefix"
    edges = edges_of([[np.array(x, dtype=np.int64) for x in triple] for triple in triples])
    own = starts if len(starts) > 1 else starts[0]
    return Automaton(edges, own, label, decided=decided)


@dataclass(frozen=True)
class Choices(Constraint):
    """Every output is one of a list of texts.

    Each is written in the tokens of the model's own tokenizer. What it scores is the model's
    log-probability: a softmax over the scores of all choices is their posterior.

    Attributes:
        choices: texts, or tuples of tokens.
    """

    choices: tuple[Phrase, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.choices, tuple) or not self.choices:
            raise InvalidInput(f"choices must be one text or more, not {brief(self.choices)}")
        if len({type(choice) for choice in self.choices}) > 1:
            raise InvalidInput("choices must be all texts, or all tuples of tokens")

    def rules(self, eos: int, context: Context | None) -> list[Rule]:
        return [_choices_rule(self, eos, None if context is None else context.vocabulary)]

    def __str__(self) -> str:
        return f"choices({listed(self.choices)})"


@dataclass(frozen=True)
class Without(Constraint):
    """No output has any of these words or phrases, however the model writes them.

    Attributes:
        phrases: texts, or tuples of tokens.
        exact: forbid a text wherever it occurs, exactly as it is; otherwise as whole words, in any
            casing.
    """

    phrases: tuple[Phrase, ...]
    exact: bool = False

    def __post_init__(self) -> None:
        ensure_phrases(self.phrases, "without")

    def rules(self, eos: int, context: Context | None) -> list[Rule]:
        return [_without_rule(self, None if context is None else context.vocabulary)]

    def __str__(self) -> str:
        return f"without{'-exactly' * self.exact}({listed(self.phrases)})"


@lru_cache(TABLES)
def _without_rule(constraint: Without, vocabulary: Vocabulary | None) -> Table:
    phrases: Any = constraint.phrases
    if isinstance(phrases[0], tuple):
        return forbidding_tokens(phrases, str(constraint))
    known = needed(vocabulary, "a phrase")
    return forbidding(phrases, constraint.exact, known, str(constraint))


@dataclass(frozen=True)
class With(Constraint):
    """Every output has all of these words or phrases.

    They begin a word, are written in the tokens of the model's own tokenizer and may go on:
    `Computer` is also in `Computern`. Beams reserve slots for prefixes that have more of them, and
    end none without. Other decoders rank outputs that lack one below all that have them:
    `Hypothesis.met` tells.

    Attributes:
        phrases: texts, or tuples of tokens.
    """

    phrases: tuple[Phrase, ...]

    def __post_init__(self) -> None:
        ensure_phrases(self.phrases, "with")
        if len(self.phrases) > MAX_REQUIRED:
            rule = f"an output may have to have {MAX_REQUIRED} phrases at most"
            raise InvalidInput(f"{rule}, not {len(self.phrases)}")

    def rules(self, eos: int, context: Context | None) -> list[Rule]:
        vocabulary = None if context is None else context.vocabulary
        return [Required([written(self.phrases, vocabulary)], str(self))]

    def __str__(self) -> str:
        return f"with({listed(self.phrases)})"


@dataclass(frozen=True)
class Terms(Constraint):
    """Outputs have the terms of a glossary, where the source has them as whole words in any casing.

    Attributes:
        pairs: the phrase of the source and that of the output.
    """

    pairs: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, values: Sequence[str]) -> Terms:
        """Return the glossary of lines `source phrase<TAB>target phrase`."""
        pairs = [
            tuple(part.strip() for part in line.split("\t")) for line in values if line.strip()
        ]
        for line, pair in enumerate(pairs, 1):
            if len(pair) != 2 or not all(pair):
                rule = "must be a phrase of the source, a tab and one of the output"
                raise InvalidInput(f"term {line} {rule}, not {brief(' '.join(pair))}")
        return cls(tuple(pairs))  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        ensure_phrases(tuple(phrase for pair in self.pairs for phrase in pair), "terms")

    def required(self, source: str) -> tuple[str, ...]:
        """Return the phrases that the output of a source must have.

        A term counts only where it is not within a longer one: `phone` not in `cell phone`.
        """
        found = sorted(
            (match.start(), -match.end(), target)
            for term, target in self._patterns
            for match in term.finditer(source)
        )
        required, longest = dict[str, None](), (0, 1)
        for start, end, target in found:
            if end < longest[1] or (start, end) == longest:
                required[target], longest = None, (start, end)
        return tuple(required)

    @cached_property
    def _patterns(self) -> list[tuple[re.Pattern[str], str]]:
        spaced = (
            (r"\s+".join(map(re.escape, term.split())), target) for term, target in self.pairs
        )
        return [
            (re.compile(rf"(?<!\w){term}(?!\w)", re.IGNORECASE), target) for term, target in spaced
        ]

    def rules(self, eos: int, context: Context | None) -> list[Rule]:
        vocabulary = needed(None if context is None else context.vocabulary, "a term")
        sources = context.sources if context is not None else ()
        required = [written(self.required(source), vocabulary) for source in sources]
        return [Required(required, str(self))] if any(required) else []

    def __str__(self) -> str:
        return f"terms({counted(len(self.pairs), 'pair')})"


@dataclass(frozen=True)
class Grammar(Constraint):
    """Every output matches a regular expression, a JSON schema or a grammar, through llguidance.

    Attributes:
        text: the expression, the schema as JSON, or the grammar in the form of Lark.
        kind: what the text is.
    """

    text: str
    kind: Literal["regex", "json-schema", "lark"] = "regex"

    def __post_init__(self) -> None:
        ensure_choice("kind", self.kind, ("regex", "json-schema", "lark"))
        if not isinstance(self.text, str) or not self.text:
            raise InvalidInput(f"a grammar must be a text, not {brief(self.text)}")

    def rules(self, eos: int, context: Context | None) -> list[Rule]:
        vocabulary = needed(None if context is None else context.vocabulary, "a grammar")
        return [_grammar_rule(self, eos, vocabulary)]

    def __str__(self) -> str:
        return f"{self.kind}({shown(' '.join(self.text.split()))})"


@lru_cache(CACHED)
def _grammar_rule(constraint: Grammar, eos: int, vocabulary: Vocabulary) -> GrammarRule:
    grammar = grammar_of(constraint.kind, constraint.text, vocabulary.leading)
    return GrammarRule(grammar, vocabulary, eos, str(constraint))


def ensure_phrases(phrases: object, name: str) -> None:
    """Require a tuple of phrases that are not empty, all of them texts or all of them tokens."""
    kinds = {type(phrase) for phrase in phrases} if isinstance(phrases, tuple) else set()
    empty = isinstance(phrases, tuple) and not all(map(_content, phrases))
    if len(kinds) != 1 or not kinds <= {str, tuple} or empty:
        rule = f"{name} must be phrases that are not empty, all texts or all tuples of tokens"
        raise InvalidInput(f"{rule}, not {brief(phrases)}")


def _content(phrase: Any) -> Any:
    return phrase.strip() if isinstance(phrase, str) else phrase


def written(phrases: Sequence[Phrase], vocabulary: Vocabulary | None) -> list[list[int]]:
    """Return the tokens of phrases within an output."""
    if not phrases or isinstance(phrases[0], tuple):
        return [list(map(int, phrase)) for phrase in phrases]
    return needed(vocabulary, "a phrase").within([str(phrase).strip() for phrase in phrases])


def listed(phrases: Sequence[Phrase]) -> str:
    """Return phrases as specs and messages show them, or their number if they are many."""
    few = "|".join(map(shown, phrases)) if len(phrases) <= FEW else ""
    return few or f"{len(phrases):,} texts"


@lru_cache(CACHED)
def _choices_rule(constraint: Choices, eos: int, vocabulary: Vocabulary | None) -> Automaton:
    choices: Any = constraint.choices
    starts = range(0, len(choices), ENCODED)
    parts: Iterable[Any] = (choices[start : start + ENCODED] for start in starts)
    if isinstance(choices[0], str):
        parts = map(needed(vocabulary, "a choice").tokens, parts)
    return Automaton(trie_of(parts, eos), ROOT, str(constraint), finishes=True, large=True)


def needed(vocabulary: Vocabulary | None, noun: str) -> Vocabulary:
    """Return the vocabulary of a model.

    Raises:
        InvalidInput: there is none.
    """
    if vocabulary is None:
        raise InvalidInput(
            f"{noun} is a text, and a model by itself has none: give tuples of tokens, or decode "
            "by a translator with constraint=…"
        )
    return vocabulary


def shown(phrase: Phrase) -> str:
    """Return a phrase as specs and messages show it."""
    text = phrase if isinstance(phrase, str) else " ".join(map(str, phrase))
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def both(first: Constraint | None, second: Constraint | None) -> Constraint | None:
    """Return the constraint that both hold, of which either may be missing."""
    if first is None or second is None:
        return second if first is None else first
    return first & second


def constrained(model: Any, constraint: Constraint | None, context: Context) -> Any:
    """Return the model under a constraint, and under the prefixes of a batch; itself without."""
    eos = model.special.eos
    rules: list[Rule] = []
    if any(context.prefixes):
        rules.append(prefix_rule(context.prefixes, context.vocabulary))
    if constraint is not None:
        rules += constraint.rules(eos, context)
    return Constrained(model, *rules) if rules else model


# By their names in specs, from the values in the brackets or the lines of a file.
LISTS: dict[str, Callable[[Sequence[str]], Constraint]] = {
    "choices": lambda texts: Choices(tuple(texts)),
    "without": lambda texts: Without(tuple(texts)),
    "without-exactly": lambda texts: Without(tuple(texts), exact=True),
    "with": lambda texts: With(tuple(texts)),
    "terms": Terms.of,
}
GRAMMARS: dict[str, Callable[[Sequence[str]], Constraint]] = {
    "lark": lambda lines: Grammar("\n".join(lines), "lark"),
    "regex": lambda lines: Grammar("\n".join(lines), "regex"),
    "json-schema": lambda lines: Grammar("\n".join(lines), "json-schema"),
}
CONSTRAINTS = {"prefix": lambda lines: Prefix("\n".join(lines)), **LISTS, **GRAMMARS}


def constraint_named(name: str, values: Sequence[str]) -> Constraint:
    """Return a constraint by its name in specs, from its values.

    Raises:
        InvalidInput: there is no such constraint, or a value breaks its rule.
    """
    if name not in CONSTRAINTS:
        rule = f"there is no constraint {name!r}; there are {', '.join(CONSTRAINTS)}"
        raise InvalidInput(rule + did_you_mean(name, CONSTRAINTS))
    return CONSTRAINTS[name](values)
