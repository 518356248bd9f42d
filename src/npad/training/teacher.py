"""The outputs that an actor learns: a beam decodes the sources once, and targets choose among them.

PARTS/
  part-00000.safetensors   places [n], lengths [n, candidates], log_probs, tokens [all tokens]

A part is written atomically, with the digest of what made it, so that a killed pass loses one part
at most and goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from npad.decoding import decode
from npad.errors import InvalidInput
from npad.metrics.registry import metric_named, metric_names
from npad.search.beam import Beam
from npad.selectors import LengthNormalised
from npad.storage.atomic import write_atomic
from npad.storage.regular import digest
from npad.training.sources import Side
from npad.training.store import PairCorpus
from npad.validation import ensure_choice, ensure_integer

MAX_ROWS = {"cuda": 1 << 14, "cpu": 1 << 10}  # rows, sources × width, of a batch
PART_BATCHES = 8  # batches on a GPU that are a part: seconds there, minutes on a CPU
LENGTH_GRID = 16  # tokens; limits of outputs are rounded up to it, so that few shapes are captured

OnProgress = Callable[[str, int, int], None]  # task, sources done, sources in all


@dataclass(frozen=True)
class Teacher:
    """The beam that decodes the sources.

    Attributes:
        width: of the beam.
        candidates: hypotheses kept per source; 1 if the target is the beam's best.
    """

    width: int = 35
    candidates: int = 1

    def __post_init__(self) -> None:
        ensure_integer("width", self.width, 1)
        ensure_integer("candidates", self.candidates, 1, self.width)

    def max_length(self, source_length: int) -> int:
        """Return the tokens that an output may have for sources of so many tokens."""
        return -(-(2 * source_length + 10) // LENGTH_GRID) * LENGTH_GRID


@dataclass(frozen=True)
class BeamOutputs:
    """Finished hypotheses of sources, best first."""

    places: NDArray[np.int64]  # [n], of the source in the list of all sources
    lengths: NDArray[np.int32]  # [n, candidates], without the end token; −1: there is none
    log_probs: NDArray[np.float32]  # [n, candidates]
    tokens: NDArray[np.int32]  # [all tokens], of one hypothesis after the other

    def hypotheses(self) -> Iterator[tuple[int, list[tuple[list[int], float]]]]:
        """Yield each source's place, and its hypotheses with their log-probabilities."""
        start = 0
        for place, lengths, log_probs in zip(
            self.places.tolist(), self.lengths.tolist(), self.log_probs.tolist(), strict=True
        ):
            found = []
            for length, log_prob in zip(lengths, log_probs, strict=True):
                if length >= 0:
                    found.append((self.tokens[start : start + length].tolist(), log_prob))
                    start += length
            yield place, found


def decode_sources(
    folder: Path,
    model: Any,
    checksum: str,
    sources: Sequence[Sequence[int]],
    teacher: Teacher,
    progress: OnProgress = lambda task, done, total: None,
    stop: Callable[[], bool] = lambda: False,
) -> list[BeamOutputs]:
    """Decode sources by a beam, part by part; parts that `folder` has already are not repeated.

    A part's sources are of like length. Parts are decoded in a shuffled order, so that those
    decoded by any moment are a fair sample.

    Args:
        folder: where the parts are kept.
        model: the model, prepared for decoding.
        checksum: identifies the model's weights.
        sources: token lists, without end tokens.
        teacher: the beam.
        progress: called after each part.
        stop: called before each part; if true, the parts so far are returned.

    Raises:
        StorageError: a part could not be written.
    """
    order = np.argsort([len(source) for source in sources], kind="stable")
    part_size = PART_BATCHES * max(1, MAX_ROWS["cuda"] // teacher.width)
    starts = range(0, len(order), part_size)
    parts: dict[int, BeamOutputs] = {}
    done = 0
    for number in np.random.default_rng(0).permutation(len(starts)).tolist():
        if stop():
            break
        places = order[starts[number] : starts[number] + part_size]
        part_sources = [sources[place] for place in places]
        made_by = digest([checksum, asdict(teacher), [list(map(int, s)) for s in part_sources]])
        path = folder / f"part-{number:05d}.safetensors"
        candidates = _load_part(path, made_by, places)
        if candidates is None:
            candidates = _decode_part(model, part_sources, places, teacher)
            tensors = {name: torch.from_numpy(x) for name, x in vars(candidates).items()}
            write_atomic(path, save(tensors, {"made_by": made_by}))
        parts[number] = candidates
        done += len(places)
        progress("decoding sources", done, len(order))
    return [parts[number] for number in sorted(parts)]


def _decode_part(
    model: Any, sources: list[Sequence[int]], places: NDArray[np.int64], teacher: Teacher
) -> BeamOutputs:
    """Decode the sources of a part, in batches of the same number of sources."""
    device = torch.device(model.device).type
    batch = max(1, MAX_ROWS.get(device, MAX_ROWS["cpu"]) // teacher.width)
    beam = Beam(teacher.width, nbest=teacher.candidates)
    lengths = np.full((len(sources), teacher.candidates), -1, dtype=np.int32)
    log_probs = np.zeros((len(sources), teacher.candidates), dtype=np.float32)
    tokens: list[int] = []
    for start in range(0, len(sources), batch):
        group = sources[start : start + batch]
        limit = teacher.max_length(max(map(len, group)))
        for i, hypotheses in enumerate(decode(model, group, beam, limit), start):
            finished = [hypothesis for hypothesis in hypotheses if hypothesis.finished]
            for rank, hypothesis in enumerate(finished):
                lengths[i, rank], log_probs[i, rank] = len(hypothesis.tokens), hypothesis.log_prob
                tokens += hypothesis.tokens
    return BeamOutputs(places, lengths, log_probs, np.array(tokens, dtype=np.int32))


def _load_part(path: Path, made_by: str, places: NDArray[np.int64]) -> BeamOutputs | None:
    """Return a part that was decoded before; None if it is missing, damaged or of other sources."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, "np") as file:
            if (file.metadata() or {}).get("made_by") != made_by:
                return None
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        candidates = BeamOutputs(**arrays)
    except (OSError, SafetensorError, TypeError):
        return None
    whole = int(candidates.lengths.clip(min=0).sum()) == len(candidates.tokens)
    return candidates if whole and np.array_equal(candidates.places, places) else None


Hypotheses = list[tuple[list[int], float]]  # tokens and log-probability, best first
# the place of a source and its hypotheses -> the index of the target
Choose = Callable[[int, Hypotheses], int]
WITHOUT_REFERENCES = ("beam", "length-normalised")


def needs_references(target: str) -> bool:
    """Return whether a target is chosen by a metric, among whose names it is then.

    Raises:
        InvalidInput: there is no such target.
    """
    if target in WITHOUT_REFERENCES:
        return False
    if target not in metric_names() or not metric_named(target).needs_references:
        others = [name for name in metric_names() if name != "logprob"]
        ensure_choice("target", target, (*WITHOUT_REFERENCES, *others))
    return True


def candidates_needed(targets: Sequence[str], width: int) -> int:
    """Return how many of a beam's hypotheses the targets are chosen from.

    Raises:
        InvalidInput: there is no such target.
    """
    for target in targets:
        needs_references(target)
    return 1 if set(targets) <= {"beam"} else width


def pairs_of(
    parts: Sequence[BeamOutputs],
    sources: Sequence[Sequence[int]],
    targets: Sequence[str] = ("beam",),
    references: Sequence[str] | None = None,
    detokenise: Callable[[Sequence[Sequence[int]]], list[str]] | None = None,
    known: Mapping[int, list[int]] | None = None,
) -> PairCorpus:
    """Return the pairs of sources and targets; with several targets, those of each, a mixture.

    Args:
        parts: the candidates.
        sources: all sources, by place.
        targets: "beam", its most probable hypothesis; "length-normalised", the one of highest
            log-probability per token; a metric such as "bleu", the one nearest to the reference.
        references: a text per source, for metrics.
        detokenise: maps many hypotheses to their texts, for metrics.
        known: what greedy search finds, by place; pairs with this target are left out.

    Raises:
        InvalidInput: a target needs references and there are none, or no pair is left.
    """
    choices = [_choice(target, references, detokenise) for target in targets]
    pairs: list[tuple[Sequence[int], list[int]]] = []
    for part in parts:
        for place, hypotheses in part.hypotheses():
            if not hypotheses:
                continue
            chosen = [hypotheses[choose(place, hypotheses)][0] for choose in choices]
            found = None if known is None else known.get(place)
            pairs += [(sources[place], tokens) for tokens in chosen if tokens and tokens != found]
    if not pairs:
        raise InvalidInput("no source has a finished, non-empty output; give other sources")
    source, target = (_side(side) for side in zip(*pairs, strict=True))
    return PairCorpus(source, target)


def _choice(target: str, references: Sequence[str] | None, detokenise: Any) -> Choose:
    needs_references(target)  # refuses what is not a target
    if target == "beam":
        return lambda place, hypotheses: 0
    if target == "length-normalised":
        score = LengthNormalised().score
        return lambda place, hypotheses: max(
            range(len(hypotheses)), key=lambda i: score(hypotheses[i][1], len(hypotheses[i][0]) + 1)
        )
    if references is None or detokenise is None:
        raise InvalidInput(
            f"the target {target} is the candidate nearest to a reference: give --references, or "
            "choose the target beam"
        )
    metric = metric_named(target).fitted(references)

    def nearest(place: int, hypotheses: Hypotheses) -> int:
        texts = detokenise([tokens for tokens, _ in hypotheses])
        statistics = metric.statistics(texts, [references[place]] * len(texts))
        return int((metric.sign * metric.sentence_scores(statistics)).argmax())

    return nearest


def _side(sentences: Sequence[Sequence[int]]) -> Side:
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
    flat = (token for sentence in sentences for token in sentence)
    return Side(np.fromiter(flat, np.int32, int(lengths.sum())), np.cumsum(lengths))
