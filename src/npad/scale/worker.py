"""A worker: a model that is loaded once and translates units."""

from __future__ import annotations

import hashlib
import os
import socket
import warnings
from collections.abc import Sequence
from contextvars import Context
from dataclasses import dataclass, replace

import torch

from npad.engine.cost import count_calls
from npad.errors import InvalidInput, MemoryWarning, NpadError, OutOfMemory, Unsatisfied
from npad.model import name_of
from npad.pipelines.loading import load
from npad.pipelines.names import ModelReference
from npad.pipelines.translation import Translator
from npad.scale.units import (
    Failed,
    Outcome,
    Result,
    Source,
    Unit,
    is_near_tie,
    without_alternatives,
)
from npad.search.request import Decoding
from npad.storage import actors, checkpoint, confidence
from npad.storage.regular import file_digest
from npad.version import __version__


@dataclass(frozen=True)
class ModelSpec:
    """What a worker loads: a model by name, never a pickled one.

    Attributes:
        model: a name for `npad.load`. A folder must have the same path on every machine.
        device: as `npad.load`.
        precision: as `npad.load`.
        max_source: tokens that a source may have.
        threads: threads of torch in each worker; None leaves torch's own choice.
        fingerprint: of the model that the driver sees; a worker that sees another refuses.
    """

    model: str
    device: str = "auto"
    precision: str = "float32"
    max_source: int = 1000
    threads: int | None = None
    fingerprint: str | None = None

    def fingerprinted(self) -> ModelSpec:
        """Return this specification with the fingerprint of its model."""
        return replace(self, fingerprint=fingerprint(self.model))


def fingerprint(model: str) -> str:
    """Return a digest of npad's version and a model's files.

    A model that npad trained is known by its config.json, which holds the checksums of the other
    files, its confidence.json and its actor.json; a folder of Hugging Face or of Firefox by all its
    files; a Python file by its name and its text. A name on the Hugging Face hub, and the toy, are
    known by name only.
    """
    reference = ModelReference.parse(model)
    parts = [__version__]
    if reference.folder is not None:
        folder = checkpoint.resolve(reference.folder)
        parts.append(file_digest(folder / checkpoint.CONFIG))
        for name in (confidence.FILE, actors.ACTOR):
            if os.path.lexists(folder / name):
                parts.append(file_digest(folder / name))
    elif reference.foreign_folder is not None:
        folder = reference.foreign_folder
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        parts += [f"{path.relative_to(folder)}:{file_digest(path)}" for path in files]
        parts += ["chat"] if reference.chat else []
    else:
        parts.append(reference.name)
        if reference.python is not None:
            parts.append(reference.python.version)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class Worker:
    """Translates units with one model.

    Raises:
        NpadError: the model cannot be loaded, or is not the driver's.
    """

    def __init__(self, spec: ModelSpec) -> None:
        if spec.threads is not None:
            # Ray sets OMP_NUM_THREADS to an actor's num_cpus, and to 1 without any.
            torch.set_num_threads(spec.threads)
        if spec.fingerprint is not None and fingerprint(spec.model) != spec.fingerprint:
            raise InvalidInput(
                f"{spec.model} on {socket.gethostname()} is another model, or is read by another "
                f"version of npad (here {__version__}), than the driver's; copy the driver's"
            )
        self.translator: Translator = load(spec.model, spec.device, spec.precision)
        self.translator = self.translator.limited_to(spec.max_source)

    def run(self, unit: Unit) -> Result:
        """Return the outcomes of a unit; a text that cannot be translated fails alone.

        Its model calls are in the result alone: a counter that is active in this process counts
        them once, when whoever asked for the result adds them.

        Raises:
            OutOfMemory: the unit does not fit, even in parts.
        """
        return Context().run(self._run, unit)

    def _run(self, unit: Unit) -> Result:
        decoder = unit.decoding.decoder
        if unit.chains is not None:
            decoder = decoder.chain_range(*unit.chains)
        texts = [text for text in unit.texts if not isinstance(text, Failed)]
        with count_calls() as calls:
            translated = iter(self._outcomes(texts, replace(unit.decoding, decoder=decoder)))
        outcomes = [text if isinstance(text, Failed) else next(translated) for text in unit.texts]
        near_ties = 0
        if unit.chains is None:
            near_ties = sum(map(is_near_tie, outcomes))
            outcomes = [without_alternatives(outcome, unit.alternatives) for outcome in outcomes]
        else:
            outcomes = [self._with_confidences(outcome) for outcome in outcomes]
        return Result(
            unit.first,
            tuple(outcomes),
            name_of(self.translator.model),
            calls.search,
            calls.rescoring,
            near_ties,
        )

    def _with_confidences(self, outcome: Outcome) -> Outcome:
        """Return a chain range's outcome with a confidence for every candidate: any may be best."""
        if isinstance(outcome, Failed) or outcome.confidence is None:
            return outcome
        confidence = self.translator.confidence
        assert confidence is not None
        alternatives = [
            replace(other, confidence=confidence(other.hypothesis), signal=outcome.signal)
            for other in outcome.alternatives
        ]
        return replace(outcome, alternatives=tuple(alternatives))

    def _outcomes(self, texts: Sequence[Source], decoding: Decoding) -> list[Outcome]:
        """Translate texts together; if that raises, halve them to find the text it is due to."""
        if not texts:
            return []
        try:
            return [
                Failed(str(outcome), isinstance(outcome, Unsatisfied))
                if isinstance(outcome, InvalidInput)
                else outcome
                for outcome in self.translator.run(texts, decoding, len(texts), skip=True)
            ]
        except MemoryError:
            raise
        except Exception as error:
            # CUDA's errors stay with a process, which is of no further use
            if isinstance(error, RuntimeError) and "CUDA error" in str(error):
                raise
            if len(texts) == 1:
                return [Failed(one_line(error))]
        middle = len(texts) // 2
        return [
            *self._outcomes(texts[:middle], decoding),
            *self._outcomes(texts[middle:], decoding),
        ]


@dataclass(frozen=True)
class Ready:
    """A worker has loaded its model."""

    pid: int
    host: str


@dataclass(frozen=True)
class CannotLoad:
    """A worker cannot load its model."""

    reason: str


@dataclass(frozen=True)
class NoMemory:
    """A unit did not fit in a worker's memory."""

    reason: str


@dataclass(frozen=True)
class Died:
    """A worker is gone, or of no further use."""

    reason: str


Event = Ready | CannotLoad | Result | NoMemory | Died  # what a worker reports to its pool


def load_worker(spec: ModelSpec) -> tuple[Worker | None, Ready | CannotLoad]:
    """Load a worker; the reason if that is not possible is returned, not raised."""
    try:
        worker = Worker(spec)
    except Exception as error:
        return None, CannotLoad(f"{one_line(error)} (on {socket.gethostname()})")
    return worker, Ready(os.getpid(), socket.gethostname())


def run_unit(worker: Worker, unit: Unit) -> Result | NoMemory | Died:
    """Run a unit; why that is not possible is returned, not raised."""
    try:
        return worker.run(unit)
    except MemoryError as error:  # includes OutOfMemory
        reason = str(error) if isinstance(error, OutOfMemory) else "it does not fit in memory"
        return NoMemory(reason)
    except Exception as error:
        return Died(one_line(error))


def run_remotely(worker: Worker, unit: Unit) -> Result | NoMemory | Died:
    """Run a unit where no one sees warnings: the result says whether memory was short."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", MemoryWarning)
        outcome = run_unit(worker, unit)
    halved = any(issubclass(warning.category, MemoryWarning) for warning in caught)
    return replace(outcome, halved=halved) if isinstance(outcome, Result) else outcome


def one_line(error: BaseException) -> str:
    """Return an error as one line; its type is part of it unless it is npad's own."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if isinstance(error, NpadError) else f"{type(error).__name__}: {text}"
