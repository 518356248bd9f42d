"""Score given hypotheses by teacher forcing, step by step or all positions in one pass."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from npad.engine.cost import add_calls
from npad.engine.cuda_graphs import graphs_of
from npad.engine.deadline import check_deadline
from npad.engine.next_token import Prediction
from npad.errors import ModelError
from npad.hypotheses import Hypotheses
from npad.model import Capabilities, Model, ensure_in_vocabulary
from npad.rows import repeat

# Positions up to which a pass runs as a CUDA graph: with more, kernels take longer to run than to
# launch.
CAPTURED_POSITIONS = 1 << 14
GRID = 8  # numbers of captured hypotheses and positions are rounded up to its multiples


class TeacherForcing(NamedTuple):
    """The input and target tokens of hypotheses [sentences, n]."""

    inputs: Tensor  # [sentences, n, T]
    targets: Tensor  # [sentences, n, T]
    reads: Tensor  # [sentences, n], the number of positions that count

    @property
    def counted(self) -> Tensor:
        """[sentences, n, T], whether a position counts."""
        return torch.arange(self.inputs.shape[-1]) < self.reads[..., None]

    @classmethod
    def of(cls, hypotheses: Hypotheses, bos: int, eos: int) -> TeacherForcing:
        lengths = hypotheses.lengths.clamp(min=0)
        reads = lengths + (hypotheses.finished & hypotheses.exists)
        padding = torch.arange(hypotheses.tokens.shape[-1]) >= lengths[..., None]
        tokens = hypotheses.tokens.masked_fill(padding, eos)  # a token that every model can read
        first, last = (torch.full_like(lengths, token)[..., None] for token in (bos, eos))
        longest = max(1, int(reads.max()))
        inputs = torch.cat([first, tokens], -1)[..., :longest]
        return cls(inputs, torch.cat([tokens, last], -1)[..., :longest], reads)

    def padded(self, hypotheses: int, positions: int, filler: int) -> TeacherForcing:
        """Return so many hypotheses of so many positions; those added do not count."""
        _, n, length = self.inputs.shape
        more = (0, positions - length, 0, hypotheses - n)
        inputs, targets = (pad(x, more, value=filler) for x in (self.inputs, self.targets))
        return TeacherForcing(inputs, targets, pad(self.reads, (0, hypotheses - n)))

    def rows(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Return inputs, targets and what counts on a device, [rows, T] each."""
        tensors = (self.inputs, self.targets, self.counted)
        inputs, targets, counted = (x.flatten(0, 1).to(device) for x in tensors)
        return inputs, targets, counted


def expand_rows(model: Model[Any], state: Any, shape: tuple[int, ...]) -> Any:
    """Return a state with one row per hypothesis, of shape [sentences, n].

    The sentences are selected already: one `select` must not both drop and expand.
    """
    return model.select(state, repeat(shape[0], shape[1], Capabilities.of(model).device))


def read_stepwise(
    model: Model[Any], state: Any, hypotheses: Hypotheses, coverage: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Read hypotheses step by step, one row per hypothesis."""
    log_prob: Tensor | float = 0.0
    attention: Tensor | float = 0.0
    for token_log_prob, weights, counts in read_positions(model, state, hypotheses, coverage):
        add_calls(rescoring=len(counts))
        log_prob = log_prob + token_log_prob.masked_fill(~counts, 0)
        if weights is not None:
            attention = attention + weights.masked_fill(~counts[:, None], 0)
    assert isinstance(log_prob, Tensor)
    return log_prob, attention if isinstance(attention, Tensor) else None


def read_positions(
    model: Model[Any], state: Any, hypotheses: Hypotheses, attention: bool = True
) -> Iterator[tuple[Tensor, Tensor | None, Tensor]]:
    """Read hypotheses, one row each, and yield what the model says at each position.

    Yields:
        The log-probability of the tokens [rows]; the attention to the source after they have been
        predicted [rows, source length], None without `attention` or if the model has none; whether
        the position counts [rows].
    """
    capabilities = Capabilities.of(model)
    bos, eos, _ = model.special
    teacher = TeacherForcing.of(hypotheses, bos, eos)
    state = expand_rows(model, state, hypotheses.lengths.shape)
    inputs, targets, counted = teacher.rows(capabilities.device)
    for t in range(inputs.shape[1]):
        check_deadline()
        logits, state = model.step(state, inputs[:, t])
        predicted = Prediction.of(model, logits, len(inputs), capabilities.normalised)
        if t == 0:
            ensure_in_vocabulary(model, targets, predicted.logits.shape[-1])
        weights = capabilities.attention(state) if attention and capabilities.attention else None
        yield predicted.at(targets[:, t, None]).squeeze(1), weights, counted[:, t]


def read_forced(
    model: Model[Any], state: Any, hypotheses: Hypotheses
) -> tuple[Tensor, Tensor | None]:
    """Return log p [sentences · n] of hypotheses [sentences, n], and no coverage."""
    capabilities = Capabilities.of(model)
    bos, eos, _ = model.special
    teacher = TeacherForcing.of(hypotheses, bos, eos)
    shape = teacher.reads.shape
    add_calls(rescoring=teacher.inputs.numel())
    with graphs_of(model, capabilities) as graphs:
        if graphs is None or teacher.inputs.numel() > CAPTURED_POSITIONS:
            log_prob, vocabulary = _log_prob(
                model, shape, state, *teacher.rows(capabilities.device)
            )
        else:
            longest = teacher.inputs.shape[-1]
            teacher = teacher.padded(_rounded(shape[1]), longest + -longest % GRID, eos)
            padded = teacher.reads.shape
            log_prob, vocabulary = graphs.call(
                partial(_log_prob, model, padded),
                model,
                ("forced", padded),
                state,
                *teacher.rows(capabilities.device),
            )
            # A copy, since the next graph may overwrite its result.
            log_prob = log_prob.view(padded)[:, : shape[1]].clone().flatten()
    ensure_in_vocabulary(model, teacher.targets, vocabulary)
    return log_prob, None


def _log_prob(
    model: Model[Any],
    shape: tuple[int, ...],
    state: Any,
    inputs: Tensor,
    targets: Tensor,
    counted: Tensor,
) -> tuple[Tensor, int]:
    """Return log p [rows] of targets [rows, T], and the size of the vocabulary.

    Targets outside the vocabulary get that of its last token, to be refused by the caller.
    """
    capabilities = Capabilities.of(model)
    assert capabilities.forced is not None
    logits: object = capabilities.forced(expand_rows(model, state, shape), inputs)
    if not isinstance(logits, Tensor) or logits.shape[:2] != inputs.shape or logits.dim() != 3:
        got = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ModelError(
            f"{capabilities.name}.forced must return logits {[*inputs.shape, 'V']}, not {got}"
        )
    predicted = Prediction.of(model, logits.flatten(0, 1), inputs.numel(), capabilities.normalised)
    vocabulary = logits.shape[-1]
    known = targets.clamp(max=vocabulary - 1).view(-1, 1)
    log_probs = predicted.at(known).view(targets.shape)
    return log_probs.masked_fill(~counted, 0).sum(1), vocabulary


def _rounded(hypotheses: int) -> int:
    """Round a number of hypotheses up to one of few: a power of two, or a multiple of GRID."""
    if hypotheses > GRID:
        return hypotheses + -hypotheses % GRID
    return 1 << (hypotheses - 1).bit_length()
