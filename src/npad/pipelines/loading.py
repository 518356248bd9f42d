"""`npad.load`: a translator by the name of its model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from inspect import signature
from pathlib import Path

import torch

from npad.engine.devices import PRECISIONS, device_named
from npad.errors import InvalidInput
from npad.models import toy
from npad.pipelines.names import ModelReference
from npad.pipelines.own_models import in_precision, load_own
from npad.pipelines.python_files import PythonName
from npad.pipelines.translation import Translator
from npad.search.defaults import Defaults
from npad.storage.confidence import Confidence
from npad.text.subwords import Detokeniser
from npad.validation import brief, ensure_choice


def load(
    name: str | Path, device: str | torch.device = "cpu", precision: str = "float32"
) -> Translator:
    """Load a model by name and return its translator.

    Args:
        name: `en-de` (English to German, everyday sentences); `toy`, an exact model of four German
            phrases; a folder that `npad train` wrote; `hf:NAME_OR_PATH`, a Hugging Face model with
            its tokenizer, or `hf:NAME:eng_Latn-deu_Latn` to choose the languages of a multilingual
            one. A decoder-only model continues the text; `chat:NAME_OR_PATH` answers it, as a
            user's message in the tokenizer's chat template. `my.py:make` runs that Python file and
            takes the translator from its name `make`.
        device: "cpu", "cuda", "cuda:1" or "auto".
        precision: of NPAD's noisy chains: "float32", "bfloat16", or "int8" on a CPU.
            Everything else, and every score, is in float32.

    Raises:
        InvalidInput: there is no such model, device or precision.
        StorageError: the model's files are damaged.
    """
    reference = ModelReference.parse(name)
    ensure_choice("precision", precision, tuple(PRECISIONS))
    device = device_named(device)
    if reference.pretrained is not None:
        translator = _load_pretrained(reference.pretrained, reference.chat, device)
    elif reference.python is not None:
        translator = _load_python(reference.python, device)
    elif reference.folder is not None:
        translator = _load_folder(reference.folder, device)
    else:
        translator = Translator(toy.model(), list, toy.detokenise, toy.tokenise)
    return replace(translator, model=in_precision(translator.model, precision))


def defaults_of(name: str | Path) -> Defaults:
    """Return what decoders default to on a model, by its name and without its weights.

    Equal to `Defaults.of(load(name).model)`.

    Raises:
        InvalidInput: the configuration of a Hugging Face model cannot be loaded safely.
    """
    reference = ModelReference.parse(name)
    if reference.pretrained is None:
        return Defaults()
    from npad.models.huggingface.loading import continues_text  # needs the extra `hf`
    from npad.models.huggingface.parts import RELATIVE_NOISE

    return Defaults.from_facts(RELATIVE_NOISE, continues_text(reference.pretrained))


def _load_folder(folder: Path, device: torch.device) -> Translator:
    """Load a model that npad trained, with its actor and its confidence if it has them."""
    own = load_own(folder, "text", device)
    source, target = own.subwords
    assert source is not None  # of a model of texts
    return Translator(
        own.model,
        source.encode,
        Detokeniser(target),
        target.encode,
        confidence=Confidence.read(own.folder, own.digest),
    )


def _load_python(name: PythonName, device: torch.device) -> Translator:
    """Return a translator that a user's Python file defines, or that its function returns."""
    value = name.load()
    if callable(value) and not isinstance(value, Translator):
        takes_device = "device" in name.call(partial(signature, value)).parameters
        value = name.call(value, **({"device": device} if takes_device else {}))
    if not isinstance(value, Translator):
        raise InvalidInput(
            f"{name} gave {brief(value)}, and must give an npad.Translator: a model with the "
            "functions `encode` and `detokenise`"
        )
    return value


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
        return list(tokenizer.apply_chat_template([message], **options)["input_ids"])

    def encode(texts: Sequence[str]) -> list[list[int]]:
        if chat:
            return [encode_message(text) for text in texts]
        return [list(ids) for ids in tokenizer(list(texts))["input_ids"]]

    def encode_target(texts: Sequence[str]) -> list[list[int]]:
        batch = tokenizer(text_target=list(texts), add_special_tokens=False)["input_ids"]
        return [list(ids) for ids in batch]

    def detokenise(tokens: tuple[int, ...]) -> str:
        return str(tokenizer.decode(list(tokens), skip_special_tokens=True)).strip()

    translator = Translator(model, encode, detokenise, encode_target)
    longest = getattr(model, "plain", model).longest
    if longest is None:
        return translator
    return replace(translator, longest=longest - 1, positions=longest - 1)
