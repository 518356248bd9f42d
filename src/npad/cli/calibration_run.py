"""The search of `npad calibrate`, from files to a record with command lines."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from npad.calibrate.calibrate import Options, Pairs, calibrate
from npad.calibrate.decoder_space import DecoderSpace
from npad.calibrate.decoding_tasks import Task, Transcribing, Translating
from npad.calibrate.report import Data, as_record
from npad.cli.decoder_options import options_for
from npad.cli.evaluate import are_recordings
from npad.cli.terminal import bar
from npad.engine.devices import device_named
from npad.errors import InvalidInput
from npad.pipelines.loading import load_as
from npad.pipelines.transcription import Transcriber
from npad.pipelines.translation import Translator
from npad.reproduce.record import Record
from npad.scale.worker import fingerprint
from npad.search.defaults import Defaults
from npad.search.npad import NPAD
from npad.text.files import read_lines, read_pairs


@dataclass(frozen=True)
class Setting:
    """The model and how it is run, as options of the command line; these are their defaults."""

    model: str
    device: str = "auto"
    precision: str = "float32"
    max_length: int = 200
    max_rows: int = 1024

    def words(self) -> list[str]:
        """Return the options of `npad translate` that differ from the defaults, and the model."""
        defaults = asdict(Setting(self.model))
        changed = {name: value for name, value in asdict(self).items() if value != defaults[name]}
        return [
            word
            for name, value in {"model": self.model, **changed}.items()
            for word in (f"--{name.replace('_', '-')}", str(value))
        ]

    def load(self, recordings: bool) -> Task:
        """Load the model."""
        device = device_named(self.device, "--device")
        if not recordings:
            translator = load_as(Translator, self.model, device, self.precision).caching()
            return Translating(translator, self.max_length, self.max_rows)
        if self.precision != "float32":
            raise InvalidInput("recordings are transcribed without --precision; leave it out")
        transcriber = load_as(Transcriber, self.model, device)
        return Transcribing(transcriber, self.max_length, self.max_rows)

    def identity(self) -> str:
        """Return what outputs and their cost depend on, besides source and decoder."""
        device = device_named(self.device, "--device")
        parts = (fingerprint(self.model)[:32], device, self.precision)
        return " ".join(map(str, (*parts, self.max_length, self.max_rows)))


@dataclass(frozen=True)
class Files:
    """The files of sentences."""

    source: Path
    reference: Path | None
    held_out: Path | None
    held_out_reference: Path | None

    def read(self) -> tuple[Pairs, Pairs | None]:
        """Return the sentences, and those to be held out if they have files of their own.

        Raises:
            InvalidInput: a file cannot be read or is empty, or some have references and some not.
        """
        if self.held_out is None:
            if self.held_out_reference is not None:
                raise InvalidInput("--held-out-reference needs --held-out, the references' sources")
            return _read(self.source, self.reference), None
        if (self.reference is None) != (self.held_out_reference is None):
            raise InvalidInput("give references of both SOURCE and --held-out, or of neither")
        held_out = _read(self.held_out, self.held_out_reference)
        return _read(self.source, self.reference), held_out


def search_decoders(
    setting: Setting,
    files: Files,
    options: Options,
    decoder: NPAD | None,
    sigmas: Sequence[float] | None,
    records: Path | None,
) -> Data:
    """Search the best decoder, with progress on stderr; return what was found.

    Args:
        setting: the model.
        files: the sentences.
        options: budget, metric and more.
        decoder: an NPAD whose σ₀ is searched; None for all decoders.
        sigmas: the σ₀ to try; None for those of the space.
        records: a file that keeps all outputs, or None.
    """
    device_named(setting.device, "--device")  # refused before anything is read
    pairs, held_out = files.read()
    recordings = are_recordings(pairs.sources)
    if options.metric is None:
        kind = "wer" if recordings else "bleu"
        options = replace(options, metric="logprob" if pairs.references is None else kind)
    task = setting.load(recordings)
    space = DecoderSpace(task.model, str(options.metric), options.unit, sigmas)
    candidates = space.candidates() if decoder is None else space.sigma_candidates(decoder)
    with _continuable(records), bar("calibrating") as progress:
        found = calibrate(
            task,
            pairs,
            options,
            held_out,
            candidates,
            None if records is None else Record(records),
            setting.identity(),
            partial(progress, "calibrating"),
        )
    defaults = Defaults.of(task.model)
    made = {c.name: options_for(c.decoder, defaults) for c in found.candidates.values()}
    program = "transcribe" if recordings else "translate"
    line = shlex.join(["npad", program, *setting.words()])
    inputs = pairs.sources[:1] if recordings else ["--input", str(files.source)]
    chosen = {"best": found.winner} | ({"cheaper": found.cheaper} if found.cheaper else {})
    commands = {key: f"{line} {made[name]} {shlex.join(inputs)}" for key, name in chosen.items()}
    return as_record(found, setting.model, made, commands, shlex.join(["npad", *sys.argv[1:]]))


@contextmanager
def _continuable(records: Path | None) -> Iterator[None]:
    """Add to an interrupt how the search continues."""
    try:
        yield
    except KeyboardInterrupt as error:
        error.add_note(
            "with --records FILE, the same command continues after an interrupt"
            if records is None
            else "the same command continues"
        )
        raise


def _read(source: Path, reference: Path | None) -> Pairs:
    if reference is None:
        return Pairs.checked(list(read_lines(source)), None)
    return Pairs.checked(*read_pairs(source, reference))
