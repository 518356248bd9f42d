"""The tokens of an English Whisper: what begins and ends a transcript, and what it may not say."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer

from npad.errors import StorageError

END = "<|endoftext|>"
START = "<|startoftranscript|>"
NO_TIMESTAMPS = "<|notimestamps|>"
PREVIOUS = "<|startofprev|>"
# What prompts a task and is never part of a transcript; the last is OpenAI's <|nospeech|>.
TASKS = (START, "<|translate|>", "<|transcribe|>", "<|startoflm|>", PREVIOUS, "<|nocaptions|>")
# Marks that annotate subtitles rather than speech: (laughs), [music], ♪, #, speaker labels such as
# ">>". A hyphen or an apostrophe may stand within a word, but not begin one.
MARKS = (
    *'"#()*+/:;<=>@[\\]^_`{|}~「」『』',
    *("<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("', "((", "))", "(((", ")))"),
    *("[[", "]]", "{{", "}}", "♪♪", "♪♪♪"),
)
NOTES = "♩♪♫♬♭♮♯"  # whose first bytes are one token, of music alone
WITHIN_WORDS = (" -", " '")


def suppressed_tokens(tokenizer: Tokenizer) -> list[int]:
    """Return the tokens that Whisper does not write: marks that are no speech, and tasks.

    A mark counts, alone and after a space, if it is a single token.
    """
    marks = {_encode(tokenizer, text)[0] for text in WITHIN_WORDS}
    for mark in (*MARKS, *NOTES):
        for text in (mark, f" {mark}"):
            tokens = _encode(tokenizer, text)
            if len(tokens) == 1 or mark in NOTES:
                marks.add(tokens[0])
    return sorted(marks | {token_id(tokenizer, task) for task in TASKS})


def token_settings(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the tokens that begin, end and pad, for config.json and generation_config.json."""
    end = token_id(tokenizer, END)
    start = token_id(tokenizer, START)
    return {
        "bos_token_id": start,
        "eos_token_id": end,
        "pad_token_id": end,
        "decoder_start_token_id": start,
    }


def generation_config(tokenizer: Tokenizer, longest: int) -> dict[str, Any]:
    """Return the generation_config.json of an English model whose decoder reads `longest` tokens.

    The first token of a transcript is neither its end nor a space.
    """
    return token_settings(tokenizer) | {
        "is_multilingual": False,
        "max_length": longest,
        "return_timestamps": False,
        "no_timestamps_token_id": token_id(tokenizer, NO_TIMESTAMPS),
        "prev_sot_token_id": token_id(tokenizer, PREVIOUS),
        "max_initial_timestamp_index": 50,  # a transcript begins within the first second
        "suppress_tokens": suppressed_tokens(tokenizer),
        "begin_suppress_tokens": [*_encode(tokenizer, " "), token_id(tokenizer, END)],
    }


def tokenizer_config(longest: int) -> dict[str, Any]:
    """Return the tokenizer_config.json of an English model."""
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), END)
    return special | {
        "tokenizer_class": "WhisperTokenizer",
        "processor_class": "WhisperProcessor",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": longest,
    }


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """Return the number of a token.

    Raises:
        StorageError: the tokenizer does not have it.
    """
    number: int | None = tokenizer.token_to_id(token)
    if number is None:
        raise StorageError(f"the tokenizer lacks {token}; it is not that of an English Whisper")
    return number


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    numbers: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return numbers
