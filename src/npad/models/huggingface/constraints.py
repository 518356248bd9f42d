"""Rules of transformers: logits processors, stopping criteria, ends, Whisper's timestamps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from npad.constraints.constrained import Constrained, Rule
from npad.errors import InvalidInput
from npad.model import Capabilities

# (tokens [rows, t], scores [rows, V]) -> scores [rows, V]
Processor = Callable[[Tensor, Tensor], Tensor]
# tokens [rows, t] -> whether to stop [rows]
Criterion = Callable[[Tensor], Tensor]
# Processors of transformers that depend on nothing but the tokens and the scores they are called
# with, and never wait for a GPU.
CAPTURABLE = {
    "ExponentialDecayLengthPenalty",
    "ForcedBOSTokenLogitsProcessor",
    "ForcedEOSTokenLogitsProcessor",
    "LogitNormalization",
    "MinLengthLogitsProcessor",
    "MinNewTokensLengthLogitsProcessor",
    "NoBadWordsLogitsProcessor",
    "RepetitionPenaltyLogitsProcessor",
    "SequenceBiasLogitsProcessor",
    "SuppressTokensAtBeginLogitsProcessor",
    "SuppressTokensLogitsProcessor",
    "TemperatureLogitsWarper",
}


# Processors of transformers that remember rows by their place, and the options that ask for them.
REMEMBERING = {
    "SynthIDTextWatermarkLogitsProcessor": "watermarking_config with SynthID",
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": "guidance_scale",
    "WhisperNoSpeechDetection": "no_speech_threshold",
}


class Written(NamedTuple):
    """What logits processors read."""

    tokens: Tensor  # [rows, t], the prefix and the tokens written so far
    sentences: Tensor  # [rows], the sentence of each row


class Processed(Rule):
    """Applies logits processors, as `generate` of Hugging Face does.

    Rows are the hypotheses of all sentences, in an order that changes. Processors of transformers
    that keep something per sentence get that of each row; others must depend on their arguments
    alone.

    Args:
        processor: changes the scores of each step; may be a list of transformers' processors.
        prefix: [sentences, length], the tokens before the first new one; `model.prefix(source)` by
            default.

    Raises:
        InvalidInput: a processor keeps something per row that a search cannot carry along.
    """

    def __init__(
        self, processor: Processor | Sequence[Processor], prefix: Tensor | None = None
    ) -> None:
        self.processors = list(processor) if isinstance(processor, Sequence) else [processor]
        self.prefix = prefix
        for part in self.processors:
            if (option := REMEMBERING.get(type(part).__name__)) is not None:
                raise InvalidInput(
                    f"{option} does not go with a search of npad, since its processor remembers "
                    "rows by their place; leave it out"
                )
        self.capturable = all(
            type(part).__module__.startswith("transformers.") and type(part).__name__ in CAPTURABLE
            for part in self.processors
        )
        self._key: Any = id(self)
        if self.capturable:
            self._key = tuple((type(part), _hashable(vars(part))) for part in self.processors)

    def key(self) -> Any:
        return self._key

    def start(self, model: Any, source: Any) -> Written:
        tokens: Tensor = model.prefix(source) if self.prefix is None else self.prefix
        return Written(tokens, torch.arange(len(tokens), device=tokens.device))

    def read(self, memory: Written, tokens: Tensor) -> Written:
        return memory._replace(tokens=torch.cat([memory.tokens, tokens[:, None]], 1))

    def apply(self, scores: Tensor, memory: Written, eos: int, first: bool) -> Tensor:
        for processor in self.processors:
            adapt = PER_SENTENCE.get(type(processor).__name__)
            if adapt is not None:
                processor = copy.copy(processor)
                adapt(processor, memory.sentences)
            scores = processor(memory.tokens, scores)
        return scores


def _of_encoded_tokens(processor: Any, sentences: Tensor) -> None:
    processor.encoder_input_ids = processor.encoder_input_ids[sentences]


def _of_encoded_ngrams(processor: Any, sentences: Tensor) -> None:
    processor.generated_ngrams = [processor.generated_ngrams[i] for i in sentences.tolist()]
    processor.batch_size = len(sentences)


def _of_prefixes(processor: Any, sentences: Tensor) -> None:
    allowed, owners = processor._prefix_allowed_tokens_fn, sentences.tolist()
    processor._prefix_allowed_tokens_fn = lambda row, tokens: allowed(owners[row], tokens)
    processor._num_beams = 1


# Processors of transformers that keep something per sentence: gives a copy that of each row.
PER_SENTENCE: dict[str, Callable[[Any, Tensor], None]] = {
    "EncoderNoRepeatNGramLogitsProcessor": _of_encoded_ngrams,
    "EncoderRepetitionPenaltyLogitsProcessor": _of_encoded_tokens,
    "PrefixConstrainedLogitsProcessor": _of_prefixes,
}


class StoppingRule(Rule):
    """Lets nothing but the end token follow tokens at which a stopping criterion holds.

    Args:
        criterion: stops rows.
        prefix: [sentences, length], the tokens before the first new one.
    """

    capturable = False

    def __init__(self, criterion: Criterion, prefix: Tensor) -> None:
        self.criterion, self.prefix = criterion, prefix

    def start(self, model: Any, source: Any) -> Tensor:
        return self.prefix

    def read(self, memory: Tensor, tokens: Tensor) -> Tensor:
        return torch.cat([memory, tokens[:, None]], 1)

    def apply(self, scores: Tensor, memory: Tensor, eos: int, first: bool) -> Tensor:
        if first:
            return scores
        end_only = torch.full_like(scores, -torch.inf)
        end_only[:, eos] = 0.0
        return torch.where(self.criterion(memory)[:, None], end_only, scores)


class MergedEnds(Rule):
    """Merges several end tokens into the first of them.

    Args:
        ends: the end tokens.
        summed: add their probabilities, as a draw needs it; otherwise the best of them counts, as
            where tokens are chosen by their score.
    """

    def __init__(self, ends: Sequence[int], summed: bool) -> None:
        self.ends, self.summed = list(ends), summed

    def key(self) -> Any:
        return tuple(self.ends), self.summed

    def apply(self, scores: Tensor, memory: Any, eos: int, first: bool) -> Tensor:
        return merge_ends(scores, self.ends, self.summed)


def merge_ends(scores: Tensor, ends: list[int], summed: bool = True) -> Tensor:
    """Give the first end token the probability of all of them, or of the best, and the rest none.

    Args:
        scores: [..., V], logits or log-probabilities.
        ends: the end tokens.
        summed: add the probabilities; otherwise take the largest.
    """
    of_ends = scores[..., ends]
    index = torch.tensor(ends, device=scores.device)
    scores = scores.index_fill(-1, index, -torch.inf)
    scores[..., ends[0]] = of_ends.logsumexp(-1) if summed else of_ends.amax(-1)
    return scores


class TimestampMemory(NamedTuple):
    """What the next timestamp depends on."""

    last: Tensor  # [rows], whether the last token was a timestamp
    before: Tensor  # [rows], whether the token before it was one, or there was none
    earliest: Tensor  # [rows], the last timestamp


class Timestamped(Rule):
    """Lets Whisper write segments, each between two timestamps, in the order of time.

    The rules are those of Whisper's authors: the first token is a timestamp; timestamps come in
    pairs, the end of a segment and the beginning of the next, unless the transcript ends; they
    never fall, and a segment is not empty; and if timestamps together are more probable than every
    other token, one follows.

    Args:
        first_stamp: the token of 0 seconds; all tokens from it on are timestamps.
        latest_start: timestamps after 0 seconds by which the first segment must begin.
    """

    capturable = False

    def __init__(self, first_stamp: int, latest_start: int = 50) -> None:
        self.first_stamp, self.latest_start = first_stamp, latest_start

    def start(self, model: Any, source: Any) -> TimestampMemory:
        device = Capabilities.of(model).device
        last = torch.ones(len(source), dtype=torch.bool, device=device)
        earliest = torch.full_like(last, self.first_stamp, dtype=torch.long)
        return TimestampMemory(last, torch.ones_like(last), earliest)

    def read(self, memory: TimestampMemory, tokens: Tensor) -> TimestampMemory:
        last = tokens >= self.first_stamp
        return TimestampMemory(last, memory.last, torch.where(last, tokens, memory.earliest))

    def apply(self, scores: Tensor, memory: TimestampMemory, eos: int, first: bool) -> Tensor:
        vocabulary = torch.arange(scores.shape[-1], device=scores.device)
        stamps = vocabulary >= self.first_stamp
        if first:
            latest = self.first_stamp + self.latest_start
            return scores.masked_fill(~stamps | (vocabulary > latest), -torch.inf)
        last, before, earliest = memory
        # After the end of a segment the next may begin at once; a segment's own end is later.
        closed = last & ~before
        too_early = stamps & (vocabulary < (earliest + (~closed).long())[:, None])
        paired = (last & before)[:, None] & stamps
        unpaired = closed[:, None] & ~stamps & (vocabulary != eos)
        scores = scores.masked_fill(too_early | paired | unpaired, -torch.inf)
        of_stamps = scores[:, self.first_stamp :].logsumexp(-1)
        likely = of_stamps > scores[:, : self.first_stamp].amax(-1)
        return scores.masked_fill(likely[:, None] & ~stamps, -torch.inf)


@dataclass(frozen=True)
class StoppingState:
    """As `ConstrainedState`, but what gives hypotheses their scores reads it as it is."""

    inner: Any
    started: bool
    memories: tuple[Any, ...]


class Stopping(Constrained):
    """A model that ends with certainty where a criterion stops it; such an end costs nothing.

    Unlike those of `Constrained`, its scores are those of hypotheses, which may have been stopped.

    Args:
        model: the model to stop.
        stopped: when it stops.
    """

    def __init__(self, model: Any, stopped: StoppingRule) -> None:
        super().__init__(model, stopped, normalised=False)

    @property
    def capabilities(self) -> Capabilities:
        offers = Capabilities.of(self.model).forced is not None
        forced = self.forced if offers else None
        return replace(super().capabilities, judge=None, modified_scores=False, forced=forced)

    def wrapped(self, inner: Any, source: Any) -> Any:
        state = super().wrapped(inner, source)
        return StoppingState(inner, state.started, state.memories)

    def forced(self, state: StoppingState, tokens: Tensor) -> Tensor:
        """Return the logits [rows, T, V] after each of tokens [rows, T]."""
        forced = Capabilities.of(self.model).forced
        assert forced is not None
        logits, (rule,), (memory,) = forced(state.inner, tokens).float(), self.rules, state.memories
        positions = []
        for t in range(tokens.shape[1]):
            started = state.started or t > 0
            memory = rule.read(memory, tokens[:, t]) if started else memory
            positions.append(rule.apply(logits[:, t], memory, self.special.eos, not started))
        return torch.stack(positions, 1)


def _hashable(value: Any) -> Any:
    """Return a value of an option in a form that can be compared and hashed."""
    if isinstance(value, Tensor):
        return value.dtype, tuple(value.shape), tuple(value.flatten().tolist())
    if isinstance(value, dict):
        return tuple((name, _hashable(item)) for name, item in sorted(value.items(), key=str))
    if isinstance(value, list | tuple | set):
        return tuple(map(_hashable, value))
    return value
