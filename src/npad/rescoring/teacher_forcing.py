"""Score given hypotheses by teacher forcing: by steps, in one pass, or by distinct prefix."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from npad.engine.cost import add_calls
from npad.engine.cuda_graphs import bucket, graphs_of
from npad.engine.deadline import check_deadline
from npad.engine.devices import to_device
from npad.engine.next_token import Prediction
from npad.errors import ModelError
from npad.hypotheses import Hypotheses
from npad.model import Capabilities, Model, PrefixReader, ensure_in_vocabulary
from npad.rescoring.plan import ReadStep, read_steps, spans
from npad.rows import IntArray, repeat, with_copies

PLANNED_ROWS = 1 << 16  # rows planned and copied to the device together, while it works on others
MAX_LOGITS = {"cpu": 1 << 26, "cuda": 1 << 30}  # logits, rows · V, held at a time
CAPTURED_STEPS = 8
# Rows of a step up to which it is captured: with more, kernels take longer to run than to launch.
CAPTURED_ROWS = 1 << 14
CAPTURED_POSITIONS = 1 << 14  # the same, of the positions of a pass
# Fewer rows are filled up, which takes hardly longer and saves captures. Groups divide it.
LEAST_ROWS = 256

GRID = 8  # numbers of captured hypotheses and positions are rounded up to its multiples


Sizes = tuple[tuple[int, int], ...]  # of each step, groups and rows


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


def read_by_prefix(
    model: Model[Any], state: Any, hypotheses: Hypotheses
) -> tuple[Tensor, Tensor | None]:
    """Return log p [sentences · n] of hypotheses [sentences, n], and no coverage."""
    capabilities = Capabilities.of(model)
    assert capabilities.prefix_reader is not None
    bos, eos, _ = model.special
    teacher = TeacherForcing.of(hypotheses, bos, eos)
    ensure_in_vocabulary(model, teacher.targets, capabilities.prefix_reader.vocabulary)
    reads = torch.where(hypotheses.exists, teacher.reads.clamp(min=1), 0)
    readouts, prefix_of = advance_prefixes(model, state, teacher.inputs, reads)
    log_probs = _log_probs_of_targets(model, readouts, prefix_of, teacher.targets, reads)
    counted = to_device(teacher.counted, log_probs.device)
    return log_probs.masked_fill(~counted, 0).sum(-1), None


def advance_prefixes(
    model: Model[Any], state: Any, inputs: Tensor, reads: Tensor
) -> tuple[list[Tensor], Tensor]:
    """Advance all distinct prefixes, step by step.

    Args:
        model: a model with a `prefix_reader`.
        state: one row per sentence.
        inputs: [sentences, n, T], on the CPU.
        reads: [sentences, n], the number of input tokens that count.

    Returns:
        The readouts of each step [prefixes, width], and the prefix of each hypothesis that reads
        anything among the prefixes of all steps [T, hypotheses].
    """
    capabilities = Capabilities.of(model)
    reader, device = capabilities.prefix_reader, capabilities.device
    assert reader is not None
    readouts: list[Tensor] = []
    prefix_of: list[IntArray] = []
    offset = 0
    with graphs_of(model, capabilities) as graphs:
        window = 1 if graphs is None else CAPTURED_STEPS
        if graphs is not None and capabilities.widen is not None:
            state = capabilities.widen(state, with_copies(len(inputs), bucket(len(inputs)), device))
        for steps in _batches(read_steps(inputs.numpy(), reads.numpy(), window), window):
            check_deadline()
            add_calls(rescoring=sum(step.rows for step in steps))
            captured = graphs is not None and max(step.rows for step in steps) <= CAPTURED_ROWS
            run = _of_one_size(steps) if captured else steps
            sizes = tuple((len(step.owners), step.rows) for step in run)
            row_of = _rows_of_prefixes(steps, [step.rows for step in run])
            arrays = [array for step in run for array in (step.owners, step.parents, step.tokens)]
            copied = to_device(torch.from_numpy(np.concatenate([*arrays, row_of])), device)
            plan, rows = torch.split(copied, [len(copied) - len(row_of), len(row_of)])
            advance = partial(_advance, reader, sizes)
            if graphs is not None and captured:
                read, state = graphs.call(advance, model, ("prefixes", sizes), state, plan)
            else:
                read, state = advance(state, plan)
            # Indexing also copies: the next graph may overwrite the result of this one.
            readouts += torch.split(read[rows], [len(step.row_of) for step in steps])
            for step in steps:
                prefix_of.append(step.prefix_of + offset)
                offset += len(step.row_of)
    return readouts, torch.from_numpy(np.stack(prefix_of))


def _batches(steps: Iterator[ReadStep], window: int) -> Iterator[list[ReadStep]]:
    """Yield consecutive steps: a window of them, or as many as have PLANNED_ROWS rows."""
    if window > 1:
        while batch := list(islice(steps, window)):
            yield batch
        return
    batch = []
    for step in steps:
        batch.append(step)
        if sum(planned.rows for planned in batch) >= PLANNED_ROWS:
            yield batch
            batch = []
    if batch:
        yield batch


def _of_one_size(steps: list[ReadStep]) -> list[ReadStep]:
    """Return CAPTURED_STEPS steps of one number of rows, one of few; idle ones are added."""
    rows = bucket(max(LEAST_ROWS, *(step.rows for step in steps)))
    steps = [step.padded(rows) for step in steps]
    idle = steps[-1]._replace(parents=np.zeros(rows, dtype=np.int64))
    return steps + (CAPTURED_STEPS - len(steps)) * [idle]


def _rows_of_prefixes(steps: list[ReadStep], rows: list[int]) -> IntArray:
    """Return the row of each prefix among those of all steps, which have so many rows."""
    offsets = np.cumsum([0, *rows])
    return np.concatenate([step.row_of + offsets[i] for i, step in enumerate(steps)])


def _advance(
    reader: PrefixReader[Any], sizes: Sizes, state: Any, plan: Tensor
) -> tuple[Tensor, Any]:
    """Return the readouts of all rows of all steps, and the state.

    plan: of each step its owners, parents and tokens, one after the other.
    """
    lengths = [size for groups, rows in sizes for size in (groups, rows, rows)]
    arrays = iter(torch.split(plan, lengths))
    readouts = []
    for owners, parents, tokens in zip(arrays, arrays, arrays, strict=True):
        readout, state = reader.advance(state, parents, owners, tokens)
        readouts.append(readout)
    return torch.cat(readouts), state


def _log_probs_of_targets(
    model: Model[Any], readouts: list[Tensor], prefix_of: Tensor, targets: Tensor, reads: Tensor
) -> Tensor:
    """Return log p of targets [sentences, n, T], projecting at most MAX_LOGITS logits at a time."""
    capabilities = Capabilities.of(model)
    reader, device = capabilities.prefix_reader, capabilities.device
    assert reader is not None
    hypotheses = reads.flatten().nonzero().squeeze(1)
    by_step = targets.flatten(0, 1)[hypotheses].t()  # [T, hypotheses]
    limit = MAX_LOGITS.get(device.type, MAX_LOGITS["cpu"]) // reader.vocabulary

    def log_probs_of(offset: int, steps: slice) -> Tensor:
        rows = torch.cat(readouts[steps])
        predicted = Prediction.of(model, reader.project(rows), len(rows), capabilities.normalised)
        index = to_device(prefix_of[steps], device) - offset
        chosen = predicted.logits[index, to_device(by_step[steps], device)]
        return chosen.to(predicted.norm.dtype) - predicted.norm[index]

    parts = [
        log_probs_of(offset, steps)  # whose logits are freed before the next ones are made
        for offset, steps in spans([len(readout) for readout in readouts], limit)
    ]
    log_probs = parts[0].new_zeros(reads.numel(), targets.shape[-1])
    log_probs[to_device(hypotheses, device)] = torch.cat(parts).t()
    return log_probs.view(targets.shape)
