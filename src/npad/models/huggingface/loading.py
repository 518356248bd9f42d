"""Load Hugging Face models by name, with tokenizer or processor, constrained as configured.

Models are untrusted. Their Python code never runs, weights are safetensors and nothing is
unpickled, no adapter and no attention kernel is loaded, and loading never reads standard input,
which holds the user's texts.
"""

from __future__ import annotations

import io
import json
import math
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock, get_ident
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch

from npad.constraints.constrained import Constrained, Forbidden
from npad.errors import InvalidInput
from npad.models.huggingface.adapter import HuggingFace, transformers
from npad.models.huggingface.constraints import Processed, Timestamped
from npad.models.linear import prepare
from npad.storage.regular import read_bytes
from npad.text.subwords import MAX_TOKENIZER_BYTES, ensure_bounded

TEXT_FILES = ("config.json", "tokenizer_config.json")
SPEECH_FILES = (*TEXT_FILES, "processor_config.json", "preprocessor_config.json")
# a role in auto_map -> the field that names a class of transformers for it
CLASS_FIELDS = {
    "AutoTokenizer": "tokenizer_class",
    "AutoProcessor": "processor_class",
    "AutoFeatureExtractor": "feature_extractor_type",
}
SAFETENSORS_ONLY = (
    "npad reads .safetensors only; load the model with transformers and save_pretrained it again"
)
INDEX = "model.safetensors.index.json"
HUB = "https://huggingface.co"
REMEMBERED = 30  # seconds; a network may come back
PROXIES = {"http", "https", "all"}
_failed: dict[str, float] = {}  # when an endpoint had no address, by its name
_loading = RLock()  # guards sys.stdin and transformers' logging, which belong to the process


def text_model(name: str, device: str | torch.device = "cpu") -> tuple[Any, Any]:
    """Load a text model, encoder–decoder or decoder-only.

    Args:
        name: a folder or a name on the hub; `NAME:FROM-TO` chooses the languages of a multilingual
            model, as in `facebook/nllb-200-distilled-600M:eng_Latn-deu_Latn`.
        device: where to load it.

    Returns:
        The model, constrained by its generation config, and its tokenizer.

    Raises:
        InvalidInput: the model cannot be loaded safely, or does not know a language.
    """
    name, languages = _split_languages(name)
    config = _config(name, TEXT_FILES)
    kind = "AutoModelForSeq2SeqLM" if config.is_encoder_decoder else "AutoModelForCausalLM"
    model = _model(getattr(transformers, kind), name, config).to(device)
    tokenizer = _loaded(transformers.AutoTokenizer, name, padding_side="left")
    with _attempt(name):
        tokenizer("a")  # some of a damaged configuration is read only now
    if languages is not None:
        codes = getattr(tokenizer, "lang_code_to_id", None) or tokenizer.get_added_vocab()
        if not hasattr(tokenizer, "src_lang"):
            raise InvalidInput(
                f"{name} has no choice of languages; leave out :{'-'.join(languages)}"
            )
        for language in languages:
            if language not in codes:
                raise InvalidInput(
                    f"{name} does not know the language {language!r}; its model card lists its own"
                )
        tokenizer.src_lang, target = languages
        model.generation_config.forced_bos_token_id = codes[target]
    return constrained(HuggingFace(model)), tokenizer


def continues_text(name: str) -> bool:
    """Return whether a model is decoder-only, from its configuration alone.

    Raises:
        InvalidInput: the configuration cannot be loaded safely.
    """
    base, _ = _split_languages(name)
    return not _config(base, TEXT_FILES).is_encoder_decoder


def hears(name: str) -> bool:
    """Return whether a model reads speech, from its configuration alone.

    Raises:
        InvalidInput: the configuration cannot be loaded safely.
    """
    base, _ = _split_languages(name)
    return type(_config(base, TEXT_FILES)) in transformers.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING


def speech_model(
    name: str, device: str | torch.device = "cpu", language: str | None = None
) -> tuple[Any, Any, tuple[Any, int] | None]:
    """Load a Whisper model.

    Args:
        name: a folder or a name on the hub.
        device: where to load it.
        language: of a multilingual model, by a name or code that Whisper knows; English by default.

    Returns:
        The model, constrained by its generation config; its processor; and, if it has tokens for
        timestamps, the same weights writing them, with the token of 0 seconds.

    Raises:
        InvalidInput: the model cannot be loaded safely, or does not know the language.
    """
    config = _config(name, SPEECH_FILES)
    model = _model(transformers.AutoModelForSpeechSeq2Seq, name, config).to(device)
    processor = _loaded(transformers.AutoProcessor, name)
    tokenizer: Any = getattr(processor, "tokenizer", None)
    generation = model.generation_config
    if not hasattr(tokenizer, "set_prefix_tokens"):
        raise InvalidInput(
            f"{name} is not a Whisper model, the only kind of speech model supported"
        )
    multilingual = getattr(generation, "is_multilingual", False)
    if language is not None and not multilingual:
        raise InvalidInput(f"{name} knows one language; leave out {language!r}")
    unknown = InvalidInput(
        f"{name} does not know the language {language!r}; Whisper's are en, de, …"
    )
    try:
        tokenizer.set_prefix_tokens(
            language or ("en" if multilingual else None), "transcribe" if multilingual else None
        )
    except ValueError as error:
        raise unknown from error
    prefix = tokenizer.prefix_tokens  # start, language, task, no timestamps
    if (
        multilingual
        and prefix[1] not in getattr(generation, "lang_to_id", {"": prefix[1]}).values()
    ):
        raise unknown
    timed = None
    if (stamp := _first_stamp(model)) is not None:
        adapter = HuggingFace(model, decoder_prefix=[t for t in prefix if t != stamp - 1])
        forbidden = {stamp - 1, *(getattr(generation, "suppress_tokens", None) or ())}
        tokens = Forbidden((t for t in forbidden if t < stamp), device=adapter.device)
        timed = Constrained(adapter, tokens, Timestamped(stamp)), stamp
    return constrained(HuggingFace(model, decoder_prefix=prefix)), processor, timed


def _first_stamp(model: Any) -> int | None:
    """Return Whisper's token of 0 seconds, which follows <|notimestamps|>; None if it has none."""
    without: int | None = getattr(model.generation_config, "no_timestamps_token_id", None)
    return without + 1 if without is not None and without + 1 < model.config.vocab_size else None


def constrained(adapter: HuggingFace) -> Any:
    """Return the model constrained by its generation config: tokens forbidden, lengths set, …"""
    config, device = adapter.model.generation_config, adapter.device
    ngram, shortest, vocabulary = (
        config.no_repeat_ngram_size,
        config.min_length,
        adapter.special.bos,
    )

    def known(tokens: Any) -> list[int]:
        """Return the tokens that the model has; it writes no others."""
        return [token for token in tokens or () if 0 <= token < vocabulary]

    never, first = known(config.suppress_tokens), known(config.begin_suppress_tokens)
    words = [word for word in config.bad_words_ids or () if word and known(word) == word]
    if not (words or never or first or ngram or shortest):
        return adapter
    if not (ngram or shortest) and all(len(word) == 1 for word in words):
        single = {word[0] for word in words} - {*adapter.end_tokens}  # no word is an end token
        return Constrained(adapter, Forbidden({*never} | single, first, device))
    eos, prefix_length = config.eos_token_id, len(adapter.decoder_prefix)
    chosen = transformers.LogitsProcessorList()
    if words:
        chosen.append(transformers.NoBadWordsLogitsProcessor(words, eos))
    if never:
        chosen.append(transformers.SuppressTokensLogitsProcessor(never, device))
    if first:
        begin = transformers.SuppressTokensAtBeginLogitsProcessor(first, prefix_length, device)
        chosen.append(begin)
    if ngram:
        chosen.append(transformers.NoRepeatNGramLogitsProcessor(ngram))
    if shortest:
        chosen.append(transformers.MinLengthLogitsProcessor(shortest, eos, device))
    return Constrained(adapter, Processed(chosen))


def _config(name: str, files: tuple[str, ...]) -> Any:
    """Load the configuration of a model that needs neither code nor adapter; refuse any other."""
    _ensure_plain(name)
    with _attempt(name):
        for file in files:
            _ensure_no_code(name, _json(name, file))
        local = {"local_files_only": out_of_reach(name)}
        if transformers.utils.find_adapter_config_file(name, **local) is not None:
            way_out = "merge it into its base model (PEFT's merge_and_unload) and save that"
            raise InvalidInput(f"{name!r} has an adapter, which npad does not load; {way_out}")
        ensure_bounded(_json(name, "tokenizer.json"), f"the tokenizer.json of {name!r}")
    config = _loaded(transformers.AutoConfig, name)
    _ensure_probabilities(name, config.to_dict())
    config._attn_implementation = None  # it may name a kernel to download and run
    return config


def _ensure_probabilities(name: str, config: dict[str, Any]) -> None:
    """Refuse a dropout that torch refuses even where none is applied."""
    for field, value in config.items():
        if isinstance(value, dict):
            _ensure_probabilities(name, value)
        elif "drop" in str(field) and isinstance(value, int | float) and not 0 <= value <= 1:
            raise InvalidInput(
                f"{field} in the config.json of {name!r} must be a probability from 0 to 1, not "
                f"{value}; correct it"
            )


def _model(kind: Any, name: str, config: Any) -> Any:
    """Load a complete model in float32, from safetensors alone, prepared to multiply fast."""
    with _attempt(name):
        unsafe = [file for file in _weight_files(name, config) if not _is_safe(file)]
    if unsafe:
        raise InvalidInput(f"{name!r} keeps weights in {unsafe[0]!r}; {SAFETENSORS_ONLY}")
    options = {"config": config, "dtype": torch.float32, "use_safetensors": True}
    with _attempt(name), _quiet():
        model, report = _loaded(kind, name, output_loading_info=True, **options)
    _ensure_complete(name, report)
    prepare(model)
    return model


def _ensure_complete(name: str, report: dict[str, Any]) -> None:
    """Refuse a checkpoint that lacks tensors, which transformers would initialise at random."""
    missing = sorted(report["missing_keys"])
    if missing:
        further = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise InvalidInput(
            f"{name!r} is incomplete: it lacks the tensor {missing[0]!r}{further}; "
            "download it again, or choose a complete checkpoint"
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers' warnings. `_loading` must be held."""
    logging = transformers.utils.logging
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


def _weight_files(name: str, config: Any) -> list[str]:
    """Return the weight files that a model names: in its configuration or an index of shards."""
    named = getattr(config, "transformers_weights", None)
    files = [INDEX if named is None else str(named)]
    if files[0].endswith(".index.json"):
        files += _json(name, files[0]).get("weight_map", {}).values()
    return files


def _is_safe(file: object) -> bool:
    """Return whether a weight file, or an index of them, is safetensors in the model's folder."""
    name = str(file)
    return name.endswith((".safetensors", ".safetensors.index.json")) and name == Path(name).name


def _ensure_plain(name: str) -> None:
    """Refuse a local model with a pipe or a device among its files, which may never end."""
    folder = Path(name)
    if not folder.exists():
        return  # a name on the hub
    if not folder.is_dir():
        raise InvalidInput(f"{name!r} must be a folder that save_pretrained wrote, not a file")
    for path in folder.iterdir():
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise InvalidInput(f"{path} must be a regular file, not a pipe or a device; remove it")


def _ensure_no_code(name: str, config: dict[str, Any]) -> None:
    """Refuse a configuration that needs the Python code that its `auto_map` names.

    If transformers implements the class too, it is used and the code is never read.
    """
    code = config.get("auto_map") or {}
    roles = (
        code if isinstance(code, dict) else {"AutoTokenizer": code}
    )  # a format of old tokenizers
    if "AutoConfig" in roles and config.get("model_type") not in transformers.CONFIG_MAPPING:
        raise _needs_code(name)
    fields = [field for role, field in CLASS_FIELDS.items() if role in roles]
    if not all(_in_transformers(config.get(field)) for field in fields):
        raise _needs_code(name)


def _in_transformers(class_name: object) -> bool:
    return isinstance(class_name, str) and isinstance(getattr(transformers, class_name, None), type)


def _needs_code(name: str) -> InvalidInput:
    rule = "needs its own Python code, which npad never runs"
    return InvalidInput(f"{name!r} {rule}; choose a model that transformers implements")


def _json(name: str, file: str) -> dict[str, Any]:
    """Read a JSON object from a folder or repository; empty if the file does not exist."""
    path = _cached(name, file)
    content = {} if path is None else json.loads(read_bytes(path, MAX_TOKENIZER_BYTES))
    if not isinstance(content, dict):
        raise InvalidInput(f"{file} must hold a JSON object, not {type(content).__name__}")
    return content


def _cached(name: str, file: str) -> str | None:
    """Return the path of a file, downloaded if it can be; None if there is none."""
    path: str | None = transformers.utils.cached_file(
        name,
        file,
        local_files_only=out_of_reach(name),
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
        _raise_exceptions_for_gated_repo=False,
    )
    return path


def _loaded(kind: Any, name: str, **options: Any) -> Any:
    with _attempt(name):
        safe = {"trust_remote_code": False, "local_files_only": out_of_reach(name)}
        return kind.from_pretrained(name, **safe, **options)


@contextmanager
def _attempt(name: str) -> Iterator[None]:
    """Load without progress bars and standard input; turn any exception into `InvalidInput`."""
    logging = transformers.utils.logging
    with _loading, _without_stdin():
        shown = logging.is_progress_bar_enabled()
        try:
            if not sys.stderr.isatty():
                logging.disable_progress_bar()
            yield
        except InvalidInput:
            raise
        except Exception as error:  # transformers raises exceptions of all kinds
            raise _refusal(name, error) from error
        finally:
            if shown:
                logging.enable_progress_bar()


def _refusal(name: str, error: Exception) -> InvalidInput:
    """Return the first line of what transformers raised as an error about the model."""
    text = str(error)
    if "trust_remote_code" in text:
        return _needs_code(name)
    reason = next(iter(text.strip().splitlines()), type(error).__name__)
    if out_of_reach(name) and not _has_config(name):
        reason = "the hub cannot be reached, and the cache lacks it; connect, or give a folder"
    if isinstance(error, OSError) and "model.safetensors" in reason:
        reason = f"it has no model.safetensors; {SAFETENSORS_ONLY}"
    return InvalidInput(f"cannot load {name!r} as a model of Hugging Face: {reason}")


def _has_config(name: str) -> bool:
    """Return whether the cache has a model's configuration, or the name is not one of the hub."""
    try:
        return _cached(name, "config.json") is not None
    except OSError:  # what was raised before says what is wrong with the name
        return True


@contextmanager
def _without_stdin() -> Iterator[None]:
    """Give this thread alone an empty standard input. `_loading` must be held."""
    stdin = sys.stdin
    sys.stdin = _ThreadStdin(stdin, get_ident())
    try:
        yield
    finally:
        sys.stdin = stdin


class _ThreadStdin:
    """Standard input that is empty for one thread."""

    def __init__(self, stdin: Any, thread: int) -> None:
        self._stdin, self._thread, self._empty = stdin, thread, io.StringIO()

    def _stream(self) -> Any:
        return self._empty if get_ident() == self._thread else self._stdin

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream(), name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stream())


def _split_languages(name: str) -> tuple[str, tuple[str, str] | None]:
    """Split NAME:FROM-TO into the name and the pair of languages, None if there is none."""
    base, colon, pair = name.rpartition(":")
    source, dash, target = pair.partition("-")
    if not (colon and dash) or "/" in pair or "\\" in pair:
        return name, None
    return base, (source, target)


def out_of_reach(name: str) -> bool:
    """Return whether a model, unless it is a folder here, can come from the cache only."""
    return not Path(name).is_dir() and not _has_address(os.environ.get("HF_ENDPOINT") or HUB)


def _has_address(endpoint: str) -> bool:
    """Return whether the hub's host is known; behind a proxy only the proxy may know it."""
    if getproxies().keys() & PROXIES:
        return True
    if time.monotonic() - _failed.get(endpoint, -math.inf) < REMEMBERED:
        return False
    try:
        return bool(socket.getaddrinfo(urlsplit(endpoint).hostname, None))
    except (OSError, ValueError):
        _failed[endpoint] = time.monotonic()
        return False
