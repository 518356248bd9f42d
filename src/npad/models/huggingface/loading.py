"""Models of Hugging Face by name, with their tokenizer or processor, steered as configured.

A model is data from a stranger. Its own Python code never runs, its weights are safetensors and
nothing is unpickled, it loads no adapter and no attention kernel, and loading it never reads
standard input, which holds the user's texts.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock, get_ident
from typing import Any

import torch

from npad.errors import InvalidInput
from npad.models.huggingface.adapter import HuggingFace, transformers
from npad.models.huggingface.processed import Processed
from npad.text.subwords import ensure_bounded

TEXT = ("config.json", "tokenizer_config.json")
SPEECH = (*TEXT, "processor_config.json", "preprocessor_config.json")
# what an auto_map gives code for, and the field that names a class of transformers to use instead
ROLES = {
    "AutoTokenizer": "tokenizer_class",
    "AutoProcessor": "processor_class",
    "AutoFeatureExtractor": "feature_extractor_type",
}
SAFE = "npad reads .safetensors only; load the model with transformers and save_pretrained it again"
INDEX = "model.safetensors.index.json"
_loading = RLock()  # sys.stdin and transformers' progress bars belong to the process


def text_model(name: str, device: str | torch.device = "cpu") -> tuple[Any, Any]:
    """A model and its tokenizer, encoder–decoder or decoder-only.

    `NAME:FROM-TO` tells a model of many languages which ones: `facebook/nllb-200-distilled-600M:eng_Latn-deu_Latn`.
    """
    name, languages = _split(name)
    config = _config(name, TEXT)
    kind = "AutoModelForSeq2SeqLM" if config.is_encoder_decoder else "AutoModelForCausalLM"
    model = _model(getattr(transformers, kind), name, config).to(device)
    tokenizer = _loaded(transformers.AutoTokenizer, name, padding_side="left")
    if languages is not None:
        known = getattr(tokenizer, "lang_code_to_id", None) or tokenizer.get_added_vocab()
        if not hasattr(tokenizer, "src_lang"):
            raise InvalidInput(
                f"{name} has no choice of languages; leave out :{'-'.join(languages)}"
            )
        for language in languages:
            if language not in known:
                raise InvalidInput(
                    f"{name} does not know the language {language!r}; see its card for those it knows"
                )
        tokenizer.src_lang, target = languages
        model.generation_config.forced_bos_token_id = known[target]
    return steered(HuggingFace(model)), tokenizer


def speech_model(
    name: str, device: str | torch.device = "cpu", language: str | None = None
) -> tuple[Any, Any]:
    """A Whisper, or one of its kind, and its processor. language: of one that knows several, as Whisper names them."""
    model = _model(transformers.AutoModelForSpeechSeq2Seq, name, _config(name, SPEECH)).to(device)
    processor = _loaded(transformers.AutoProcessor, name)
    tokenizer: Any = getattr(processor, "tokenizer", None)
    config = model.generation_config
    if not hasattr(tokenizer, "set_prefix_tokens"):
        raise InvalidInput(f"{name} is no Whisper, and npad does not know how its decoder begins")
    many = getattr(config, "is_multilingual", False)
    if language is not None and not many:
        raise InvalidInput(f"{name} knows one language; leave out {language!r}")
    unknown = InvalidInput(
        f"{name} does not know the language {language!r}; Whisper's are en, de, …"
    )
    try:
        tokenizer.set_prefix_tokens(
            language or ("en" if many else None), "transcribe" if many else None
        )
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
        "min_length": lambda it: transformers.MinLengthLogitsProcessor(
            it, config.eos_token_id, device
        ),
    }
    asked = {name: getattr(config, name, None) for name in made}
    wanted = [made[name](value) for name, value in asked.items() if value]
    return (
        Processed(adapter, processor=transformers.LogitsProcessorList(wanted), beam=True)
        if wanted
        else adapter
    )


def _config(name: str, files: tuple[str, ...]) -> Any:
    """The model's configuration, once the model is known to need no code and no adapter."""
    _ensure_plain(name)
    with _attempt(name):
        for file in files:
            _ensure_no_code(name, _json(name, file))
        if transformers.utils.find_adapter_config_file(name) is not None:
            way_out = "merge it into its base model (PEFT's merge_and_unload) and save that"
            raise InvalidInput(f"{name!r} has an adapter, which npad does not load; {way_out}")
        ensure_bounded(_json(name, "tokenizer.json"), f"the tokenizer.json of {name!r}")
    config = _loaded(transformers.AutoConfig, name)
    config._attn_implementation = None  # it may name a kernel to download and run
    return config


def _model(kind: Any, name: str, config: Any) -> Any:
    """A model in float32 from safetensors alone."""
    with _attempt(name):
        unsafe = [file for file in _weight_files(name, config) if not _is_safe(file)]
    if unsafe:
        raise InvalidInput(f"{name!r} keeps weights in {unsafe[0]!r}; {SAFE}")
    options = {"config": config, "dtype": torch.float32, "use_safetensors": True}
    with _attempt(name), _quiet():
        model, report = _loaded(kind, name, output_loading_info=True, **options)
    _ensure_complete(name, report)
    return model


def _ensure_complete(name: str, report: dict[str, Any]) -> None:
    """Refuse a checkpoint without some of the model's tensors: transformers draws those at random."""
    missing = sorted(report["missing_keys"])
    if missing:
        others = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        way_out = "download it again, or choose a checkpoint that is complete"
        raise InvalidInput(
            f"{name!r} is incomplete: it lacks the tensor {missing[0]!r}{others}; {way_out}"
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
    """The files of weights that a model names: in its configuration, in an index of shards."""
    named = getattr(config, "transformers_weights", None)
    files = [INDEX if named is None else str(named)]
    if files[0].endswith(".index.json"):
        files += _json(name, files[0]).get("weight_map", {}).values()
    return files


def _is_safe(file: object) -> bool:
    """Whether a file of weights, or an index of them, is safetensors in the model's own folder."""
    name = str(file)
    return name.endswith((".safetensors", ".safetensors.index.json")) and name == Path(name).name


def _ensure_plain(name: str) -> None:
    """Refuse a local model with a pipe or a device among its files: reading it would never end."""
    folder = Path(name)
    if not folder.exists():
        return  # a name on the hub
    if not folder.is_dir():
        raise InvalidInput(f"{name!r} must be a folder that save_pretrained wrote, not a file")
    for path in folder.iterdir():
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise InvalidInput(f"{path} must be a regular file, not a pipe or a device; remove it")


def _ensure_no_code(name: str, about: dict[str, Any]) -> None:
    """Refuse a configuration that depends on Python code of its own, which `auto_map` names.

    Where transformers has the class too, the code is left unread and the class is used.
    """
    code = about.get("auto_map") or {}
    roles = code if isinstance(code, dict) else {"AutoTokenizer": code}  # as of old
    if "AutoConfig" in roles and about.get("model_type") not in transformers.CONFIG_MAPPING:
        raise _needs_code(name)
    if not all(_in_transformers(about.get(ROLES[role])) for role in ROLES.keys() & roles.keys()):
        raise _needs_code(name)


def _in_transformers(kind: object) -> bool:
    return isinstance(kind, str) and isinstance(getattr(transformers, kind, None), type)


def _needs_code(name: str) -> InvalidInput:
    rule = "needs Python code of its own, which npad never runs"
    return InvalidInput(f"{name!r} {rule}; choose a model that transformers implements")


def _json(name: str, file: str) -> dict[str, Any]:
    """A JSON file of a folder or repository; empty where there is none."""
    path = transformers.utils.cached_file(
        name,
        file,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
        _raise_exceptions_for_gated_repo=False,
    )
    about = {} if path is None else json.loads(Path(path).read_text(encoding="utf-8"))
    if not isinstance(about, dict):
        raise InvalidInput(f"{file} must hold a JSON object, not {type(about).__name__}")
    return about


def _loaded(kind: Any, name: str, **rest: Any) -> Any:
    with _attempt(name):
        return kind.from_pretrained(name, trust_remote_code=False, **rest)


@contextmanager
def _attempt(name: str) -> Iterator[None]:
    """Load with a quiet log and without standard input; whatever fails becomes one line."""
    logging = transformers.utils.logging
    with _loading, _without_stdin():
        shown = logging.is_progress_bar_enabled()
        try:
            if not sys.stderr.isatty():
                logging.disable_progress_bar()
            yield
        except InvalidInput:
            raise
        except Exception as error:  # whatever it is, the model is not there
            raise _refusal(name, error) from error
        finally:
            if shown:
                logging.enable_progress_bar()


def _refusal(name: str, error: Exception) -> InvalidInput:
    text = str(error)
    if "trust_remote_code" in text:
        return _needs_code(name)
    reason = next(iter(text.strip().splitlines()), type(error).__name__)
    if isinstance(error, OSError) and "model.safetensors" in reason:
        reason = f"it has no model.safetensors; {SAFE}"
    return InvalidInput(f"cannot load {name!r} as a model of Hugging Face: {reason}")


@contextmanager
def _without_stdin() -> Iterator[None]:
    """Show this thread an empty standard input; others keep theirs. `_loading` must be held."""
    stdin = sys.stdin
    sys.stdin = _Withheld(stdin, get_ident())
    try:
        yield
    finally:
        sys.stdin = stdin


class _Withheld:
    """Standard input, empty for one thread."""

    def __init__(self, stdin: Any, thread: int) -> None:
        self._stdin, self._thread, self._empty = stdin, thread, io.StringIO()

    def _seen(self) -> Any:
        return self._empty if get_ident() == self._thread else self._stdin

    def __getattr__(self, name: str) -> Any:
        return getattr(self._seen(), name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._seen())


def _split(name: str) -> tuple[str, tuple[str, str] | None]:
    """NAME:FROM-TO in its parts."""
    base, colon, pair = name.rpartition(":")
    source, dash, target = pair.partition("-")
    if not (colon and dash) or "/" in pair or "\\" in pair:
        return name, None
    return base, (source, target)
