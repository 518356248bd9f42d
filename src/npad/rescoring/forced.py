"""Read hypotheses with the model's `forced`, all positions in one pass."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from npad.engine.cost import add_calls
from npad.engine.cuda_graphs import graphs_of
from npad.engine.next_token import Prediction
from npad.errors import ModelError
from npad.model import Capabilities, Model, ensure_in_vocabulary
from npad.rescoring.teacher_forcing import TeacherForcing, expand_rows
from npad.search.hypotheses import Hypotheses

# Positions up to which a pass runs as a CUDA graph: with more, kernels take longer to run than to
# launch.
CAPTURED_POSITIONS = 1 << 14
GRID = 8  # numbers of captured hypotheses and positions are rounded up to its multiples


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
