"""`npad.load`: the pipeline of a model, by the model's name."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from npad.engine.devices import MODEL_PRECISIONS, device_named
from npad.errors import InvalidInput
from npad.models import ssru, toy
from npad.models.cgru.fast import prepared
from npad.models.low_precision import in_precision
from npad.pipelines.captioning import Captioner
from npad.pipelines.firefox import load_firefox
from npad.pipelines.names import ModelReference, PythonName, languages_of
from npad.pipelines.pipeline import Pipeline
from npad.pipelines.sound import log_mel
from npad.pipelines.transcription import Timestamps, Transcriber
from npad.pipelines.translation import Translator
from npad.plugins import Plugin
from npad.search.defaults import Defaults
from npad.storage import checkpoint
from npad.storage.actors import load_actor
from npad.storage.confidence import FILE, Confidence
from npad.storage.regular import digest, file_digest
from npad.text.subwords import Detokeniser, PretrainedDetokeniser
from npad.validation import brief, ensure_choice

COMMANDS = {"text": "npad translate", "picture": "npad caption", "sound": "npad transcribe"}
PIPELINES: dict[type[Pipeline], str] = {
    Translator: "text",
    Captioner: "picture",
    Transcriber: "sound",
}
WEIGHT_FILES = re.compile(r"\.(safetensors|bin)(\.gz)?$")  # of Hugging Face and Firefox
LONGEST = 30.0  # seconds of a window of a model that does not say what it was trained on

Kind = TypeVar("Kind", bound=Pipeline)


def load(
    name: str | Path,
    device: str | torch.device = "cpu",
    precision: str = "float32",
    language: str | None = None,
    timestamps: bool = False,
) -> Any:
    """Load a model by name and return its pipeline.

    Args:
        name: `en-de` (English to German, everyday sentences); `toy`, an exact model of four German
            phrases; a folder that `npad train` wrote; `hf:NAME_OR_PATH`, a Hugging Face model with
            its tokenizer, or `hf:NAME:eng_Latn-deu_Latn` to choose the languages of a multilingual
            one. A decoder-only model continues the text; `chat:NAME_OR_PATH` answers it, as a
            user's message in the tokenizer's chat template. A folder of a translation model of
            Firefox; `shortlist:FOLDER` for one that predicts from its shortlist alone.
            `my.py:make` runs that Python file and takes the pipeline from its name `make`.
        device: "cpu", "cuda", "cuda:1" or "auto".
        precision: of NPAD's noisy chains: "float32", "bfloat16", or "int8" on a CPU.
            Everything else, and every score, is in float32. "int8-all" is the model in int8, on a
            CPU: all decoders, and all scores, as the model's name says in the signature.
        language: of a multilingual speech model; English by default.
        timestamps: let a speech model write them, if it can. Its words may differ a little then.

    Returns:
        A `Translator`; a `Transcriber` for a speech model, such as Whisper or one of
        `npad train --task speech`; a `Captioner` for one of `npad train --task caption`.

    Raises:
        InvalidInput: there is no such model, device, precision or language.
        StorageError: the model's files are damaged.
    """
    return load_as(Pipeline, name, device, precision, language, timestamps)  # type: ignore[type-abstract]


def load_as(
    kind: type[Kind],
    name: str | Path,
    device: str | torch.device = "cpu",
    precision: str = "float32",
    language: str | None = None,
    timestamps: bool = False,
) -> Kind:
    """Load a pipeline as `load` does, and refuse one of another kind before its weights are read.

    The kind is `Translator`, `Transcriber` or `Captioner`; or `Pipeline` for any of them.
    """
    reference = ModelReference.parse(name)
    ensure_choice("precision", precision, MODEL_PRECISIONS)
    device = device_named(device)
    if language is not None and not isinstance(language, str):
        raise InvalidInput(f"language must be a code, such as 'de', or None, not {brief(language)}")
    pipeline: Any
    if reference.python is not None:
        pipeline = _load_python(reference.python, device)
        source = next(s for known, s in PIPELINES.items() if isinstance(pipeline, known))
    else:
        source = source_of(reference)
    if source != PIPELINES.get(kind, source):
        rule = f"is a model of {source}s, not of {PIPELINES[kind]}s"
        raise InvalidInput(f"{reference.name} {rule}; use it with {COMMANDS[source]}")
    if reference.pretrained is not None and source == "sound":
        pipeline = _load_whisper(reference.pretrained, device, language, timestamps)
    elif language is not None:
        raise InvalidInput(f"{name} has one language: leave out {language!r}")
    elif reference.pretrained is not None:
        pipeline = _load_pretrained(reference.pretrained, reference.chat, device)
    elif reference.folder is not None:
        pipeline = _load_folder(reference.folder, device)
    elif reference.firefox is not None:
        pipeline = load_firefox(reference.firefox, device, reference.shortlist)
    elif reference.python is None:
        pipeline = Translator(
            toy.model(), list, toy.detokenise, toy.tokenise, languages=("de", "en")
        )
    if reference.foreign_folder is not None and (reference.foreign_folder / FILE).exists():
        confidence = Confidence.read(*confidence_place(reference))
        pipeline = replace(pipeline, confidence=confidence)
    pipeline = replace(pipeline, model=in_precision(pipeline.model, precision))
    if getattr(pipeline, "timed", None) is not None:  # the same weights
        timed = replace(pipeline.timed, model=in_precision(pipeline.timed.model, precision))
        pipeline = replace(pipeline, timed=timed)
    return cast(Kind, pipeline)


def confidence_place(reference: ModelReference) -> tuple[Path, str]:
    """Return the folder that keeps a model's confidence, and the digest of the model's weights.

    Raises:
        InvalidInput: the model is in no folder of its own.
        StorageError: a file cannot be read.
    """
    folder = reference.foreign_folder
    if folder is None or reference.chat:
        folder = checkpoint.resolve(reference.require_folder("keep a confidence"))
        return folder, checkpoint.weights_digest(folder)
    files = sorted(path for path in folder.iterdir() if WEIGHT_FILES.search(path.name))
    return folder, digest("\n".join(map(file_digest, files)))


def source_of(reference: ModelReference) -> str:
    """Return what a model reads, without its weights: "text", "picture" or "sound".

    Raises:
        InvalidInput: the configuration of a Hugging Face model cannot be loaded safely.
    """
    if reference.pretrained is not None and not reference.chat:
        from npad.models.huggingface.loading import hears  # needs the extra `hf`

        return "sound" if hears(reference.pretrained) else "text"
    if reference.folder is None:
        return "text"
    config = checkpoint.read_config(checkpoint.resolve(reference.folder))
    return checkpoint.source_kind(config)


def defaults_of(name: str | Path) -> Defaults:
    """Return what decoders default to on a model, by its name and without its weights.

    Equal to `Defaults.of(load(name).model)`.

    Raises:
        InvalidInput: the configuration of a Hugging Face model cannot be loaded safely.
    """
    reference = ModelReference.parse(name)
    if reference.firefox is not None:
        return Defaults.from_facts(ssru.RELATIVE_NOISE, open_ended=False)
    if reference.pretrained is None:
        return Defaults()
    from npad.models.huggingface.loading import continues_text  # needs the extra `hf`
    from npad.models.huggingface.parts import RELATIVE_NOISE

    return Defaults.from_facts(RELATIVE_NOISE, continues_text(reference.pretrained))


def _load_folder(folder: Path, device: torch.device) -> Pipeline:
    """Load a model that npad trained, with its actor and its confidence if it has them.

    Its languages are those that it was prepared with, or those that the folder's name ends with.
    """
    named, folder = languages_of(os.path.abspath(folder)), checkpoint.resolve(folder)
    saved = checkpoint.load(folder, device)
    model, digest = prepared(saved.model), checkpoint.weights_digest(folder)
    model.actor = load_actor(folder, digest, device)
    source, target = saved.subwords
    confidence = Confidence.read(folder, digest)
    options = saved.model.source_encoder.options
    if saved.model.source == "picture":
        return Captioner(model, Detokeniser(target), options["size"], confidence)
    if saved.model.source == "sound":
        rate, bins = options["rate"], options["bins"]

        def hear(recordings: Sequence[Tensor]) -> list[Tensor]:
            return [log_mel(recording, rate, bins) for recording in recordings]

        longest = saved.about.get("longest_seconds", LONGEST)  # of its training recordings
        detokenise = Detokeniser(target)
        return Transcriber(model, hear, detokenise, rate, longest, confidence=confidence)
    assert source is not None  # of a model of texts
    return Translator(
        model,
        source.encode,
        Detokeniser(target),
        target.encode,
        confidence=confidence,
        languages=languages_of(saved.about.get("languages")) or named,
    )


def _load_python(name: PythonName | Plugin, device: torch.device) -> Pipeline:
    """Return a pipeline that Python code defines, or that its function returns.

    The code is a user's file or an installed package.
    """
    value = name.load()
    if callable(value) and not isinstance(value, Pipeline):
        takes_device = "device" in name.call(partial(signature, value)).parameters
        value = name.call(value, **({"device": device} if takes_device else {}))
    if not isinstance(value, tuple(PIPELINES)):
        raise InvalidInput(
            f"{name} gave {brief(value)}, and must give an npad.Translator: a model with the "
            "functions `encode` and `detokenise`; or a Transcriber or Captioner"
        )
    return cast(Pipeline, value)


def _load_pretrained(name: str, chat: bool, device: torch.device) -> Translator:
    """Load a Hugging Face model with its tokenizer; `chat`: texts are a user's messages."""
    from npad.models.huggingface.loading import text_model  # needs the extra `hf`

    model, tokenizer = text_model(name, device)
    if chat and not getattr(tokenizer, "chat_template", None):
        raise InvalidInput(
            f"the tokenizer of {name} has no chat template; write hf:{name}, and the prompt as the "
            "model expects it"
        )

    def encode_message(text: str) -> list[int]:
        message = {"role": "user", "content": text}
        options = {"add_generation_prompt": True, "return_dict": True}
        try:
            return list(tokenizer.apply_chat_template([message], **options)["input_ids"])
        except Exception as error:  # a template is an untrusted program
            raise InvalidInput(
                f"the chat template of {name} fails with {brief(error)}; write hf:{name}, and the "
                "prompt as the model expects it"
            ) from error

    def encode(texts: Sequence[str]) -> list[list[int]]:
        if chat:
            return [encode_message(text) for text in texts]
        return [list(ids) for ids in tokenizer(list(texts))["input_ids"]]

    detokenise = PretrainedDetokeniser(tokenizer)
    languages = None if chat else languages_of(name)
    translator = Translator(model, encode, detokenise, detokenise.encode, languages=languages)
    longest = getattr(model, "plain", model).longest
    if longest is None:
        return translator
    return replace(translator, longest=longest - 1, positions=longest - 1)


def _load_whisper(
    name: str, device: torch.device, language: str | None, timestamps: bool
) -> Transcriber:
    """Load a speech model of Hugging Face, as it writes timestamps if asked for."""
    from npad.models.huggingface.adapter import Inputs  # needs the extra `hf`
    from npad.models.huggingface.loading import speech_model

    model, processor, timed = speech_model(name, device, language)
    rate = processor.feature_extractor.sampling_rate

    def hear(recordings: Sequence[Tensor]) -> Inputs:
        samples = [recording.numpy() for recording in recordings]
        return Inputs(**processor(samples, sampling_rate=rate, return_tensors="pt"))

    longest = getattr(processor.feature_extractor, "chunk_length", LONGEST)
    plain = Transcriber(model, hear, PretrainedDetokeniser(processor.tokenizer), rate, longest)
    if timed is None:
        return plain
    with_times = replace(plain, model=timed[0], timestamps=Timestamps(timed[1]))
    return with_times if timestamps else replace(plain, timed=with_times)
