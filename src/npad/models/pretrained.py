"""Models of Hugging Face by name: loaded with what turns text or sound into their input, and steered as configured."""

from __future__ import annotations

import sys
from typing import Any

import torch

from npad.errors import InvalidInput
from npad.models.huggingface import HuggingFace, transformers
from npad.models.processed import Processed


def text_model(name: str, device: str | torch.device = "cpu") -> tuple[Any, Any]:
    """A model and its tokenizer, encoder–decoder or decoder-only.

    `NAME:FROM-TO` tells a model of many languages which ones: `facebook/nllb-200-distilled-600M:eng_Latn-deu_Latn`.
    """
    name, languages = _split(name)
    config = _loaded(transformers.AutoConfig, name)
    kind = "AutoModelForSeq2SeqLM" if config.is_encoder_decoder else "AutoModelForCausalLM"
    model = _loaded(getattr(transformers, kind), name).to(device)
    tokenizer = _loaded(transformers.AutoTokenizer, name, padding_side="left")
    if languages is not None:
        known = getattr(tokenizer, "lang_code_to_id", None) or tokenizer.get_vocab()
        for language in languages:
            if language not in known:
                raise InvalidInput(f"{name} does not know the language {language!r}; see its card for those it knows")
        tokenizer.src_lang, target = languages
        model.generation_config.forced_bos_token_id = known[target]
    return steered(HuggingFace(model)), tokenizer


def speech_model(name: str, device: str | torch.device = "cpu", language: str | None = None) -> tuple[Any, Any]:
    """A model that listens, and its processor. language: of a model that knows several, as Whisper names them."""
    model = _loaded(transformers.AutoModelForSpeechSeq2Seq, name).to(device)
    processor = _loaded(transformers.AutoProcessor, name)
    begins = None
    if hasattr(processor.tokenizer, "set_prefix_tokens"):  # Whisper: language, task, no timestamps
        many = getattr(model.generation_config, "is_multilingual", False)
        if language is not None and not many:
            raise InvalidInput(f"{name} knows one language; leave out {language!r}")
        try:
            processor.tokenizer.set_prefix_tokens(language or ("en" if many else None), "transcribe" if many else None)
            begins = processor.tokenizer.prefix_tokens
        except ValueError as error:
            raise InvalidInput(f"{name} does not know the language {language!r}; Whisper's are en, de, …") from error
    elif language is not None:
        raise InvalidInput(f"{name} has no choice of language; leave out {language!r}")
    return steered(HuggingFace(model, begins=begins)), processor


def steered(adapter: HuggingFace) -> Any:
    """A model with what its generation config asks of every output: symbols never written, lengths, no repetition."""
    config, device = adapter.model.generation_config, adapter.device
    made: dict[str, Any] = {
        "bad_words_ids": lambda it: transformers.NoBadWordsLogitsProcessor(it, config.eos_token_id),
        "suppress_tokens": lambda it: transformers.SuppressTokensLogitsProcessor(it, device),
        "begin_suppress_tokens": lambda it: transformers.SuppressTokensAtBeginLogitsProcessor(
            it, len(adapter.begins), device
        ),
        "no_repeat_ngram_size": transformers.NoRepeatNGramLogitsProcessor,
        "min_length": lambda it: transformers.MinLengthLogitsProcessor(it, config.eos_token_id, device),
    }
    asked = {name: getattr(config, name, None) for name in made}
    wanted = [made[name](value) for name, value in asked.items() if value]
    return Processed(adapter, processor=transformers.LogitsProcessorList(wanted)) if wanted else adapter


def _loaded(kind: Any, name: str, **rest: Any) -> Any:
    logging = transformers.utils.logging
    shown = logging.is_progress_bar_enabled()
    try:
        if not sys.stderr.isatty():
            logging.disable_progress_bar()
        return kind.from_pretrained(name, **rest)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InvalidInput(f"cannot load {name!r} as a model of Hugging Face: {reason}") from error
    finally:
        if shown:
            logging.enable_progress_bar()


def _split(name: str) -> tuple[str, tuple[str, str] | None]:
    """NAME:FROM-TO in its parts."""
    base, colon, pair = name.rpartition(":")
    source, dash, target = pair.partition("-")
    if not (colon and dash) or "/" in pair or "\\" in pair:
        return name, None
    return base, (source, target)
