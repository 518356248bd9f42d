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
    model = _loaded(getattr(transformers, kind), name, dtype=torch.float32).to(device)
    tokenizer = _loaded(transformers.AutoTokenizer, name, padding_side="left")
    if languages is not None:
        known = getattr(tokenizer, "lang_code_to_id", None) or tokenizer.get_added_vocab()
        if not hasattr(tokenizer, "src_lang"):
            raise InvalidInput(f"{name} has no choice of languages; leave out :{'-'.join(languages)}")
        for language in languages:
            if language not in known:
                raise InvalidInput(f"{name} does not know the language {language!r}; see its card for those it knows")
        tokenizer.src_lang, target = languages
        model.generation_config.forced_bos_token_id = known[target]
    return steered(HuggingFace(model)), tokenizer


def speech_model(name: str, device: str | torch.device = "cpu", language: str | None = None) -> tuple[Any, Any]:
    """A Whisper, or one of its kind, and its processor. language: of one that knows several, as Whisper names them."""
    model = _loaded(transformers.AutoModelForSpeechSeq2Seq, name, dtype=torch.float32).to(device)
    processor = _loaded(transformers.AutoProcessor, name)
    tokenizer: Any = getattr(processor, "tokenizer", None)
    config = model.generation_config
    if not hasattr(tokenizer, "set_prefix_tokens"):
        raise InvalidInput(f"{name} is no Whisper, and npad does not know how its decoder begins")
    many = getattr(config, "is_multilingual", False)
    if language is not None and not many:
        raise InvalidInput(f"{name} knows one language; leave out {language!r}")
    unknown = InvalidInput(f"{name} does not know the language {language!r}; Whisper's are en, de, …")
    try:
        tokenizer.set_prefix_tokens(language or ("en" if many else None), "transcribe" if many else None)
    except ValueError as error:
        raise unknown from error
    begins = tokenizer.prefix_tokens  # start, language, task, no timestamps
    if many and begins[1] not in getattr(config, "lang_to_id", {"": begins[1]}).values():
        raise unknown
    return steered(HuggingFace(model, begins=begins)), processor


def steered(adapter: HuggingFace) -> Any:
    """A model with what its generation config forbids: some symbols, some to begin with, repetition, an early end."""
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
    return Processed(adapter, processor=transformers.LogitsProcessorList(wanted), beam=True) if wanted else adapter


def _loaded(kind: Any, name: str, **rest: Any) -> Any:
    logging = transformers.utils.logging
    shown = logging.is_progress_bar_enabled()
    try:
        if not sys.stderr.isatty():
            logging.disable_progress_bar()
        return kind.from_pretrained(name, **rest)
    except Exception as error:  # whatever it is, the model is not there
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
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
