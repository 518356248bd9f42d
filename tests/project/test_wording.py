"""Plain English in documents, messages, docstrings, comments and tests: phrases that stay out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
FOLDERS = ("src", "docs", "tests", "studies", "benchmarks", "examples", ".ci", ".github")
KINDS = {".py", ".pyi", ".md", ".js", ".html", ".css", ".toml", ".yml", ".yaml", ".sh"}
COUNTED = (
    r"calls|milliseconds|ms|tokens?|rows?|bits|columns|lines?|panel|bytes|samples|updates|"
    r"recordings?|thread|graphs?|object|figure|one|\d"
)
UNITS = (
    r"sentence|model|update|picture|recording|decoder|step|side|channel|row|word|text|file|chain|"
    r"token|request|second|minute|unit|worker|batch|prefix|layer|pair"
)
# What a sentence must not say -> what it says instead.
PHRASES = {
    rf"\b(?:{COUNTED}) an? (?:{UNITS})\b": "per: one thread per model",
    r", too(?=[.,;:)\"'`]|\s*$)": "also, as well",
    r"\b(?:none|one|model|file) of npad's\b|\bnpad's to\b": "not an npad model folder",
    r"\bone's own\b": "your own",
    r"\bof theirs\b": "their",
    r"\blies? (?:beside|by)\b|\blying beside\b": "is stored with, is next to",
    r"\bgo(?:es)? on with\b": "continue with",
    r"\bat hand\b": "given, local, already there",
    r"\bwithout a word\b|\bends \w+ in silence\b": "quietly, without a message",
    r"\bhears? (?:of|nothing)\b|\bha(?:s|ve) heard\b|\bhears and\b": "knows, is a speech model",
    r"\banew\b": "again, from scratch",
    r"\bto the digit\b": "exactly",
    r"\bas far as (?:it goes|can be)\b": "up to where it ends",
    r"\btold\b": "given, reported",
    r"\bwhat (?:came|comes|becomes) of\b": "results, what happens to",
    r"\b[Oo]f equals\b": "ties, stable",
    r"\bnothing to find\b": "greedy search is already optimal on 99.8 %",
    r"\b[Aa]nswers on this page\b": "the responses on this page are tested",
    r"\bprogram that asks\b": "reports render from recorded results",
    r"\blikewise\b": "in the same way, also",
    r"\bfor ever\b": "forever",
    r"\bmend(?:s|ed|ing)?\b": "fix, repair",
    r"\bthence\b|\bthereby\b|\bwherein\b": "from there, so",
    r"\bsome (?:hundreds?|thousands?|dozens?)\b": "a few hundred, about",
    r"\bis said of\b|\bas is said\b": "the message about",
    r"\bsays? in words\b|\bwhich in words\b": "describes",
    r"\bwhat they (?:write|wrote) for\b": "work as in",
    r"\bis no (?:JSON|HTTP|SentencePiece)\b|\bis no such class\b": "is not, is not a",
    r"\bends with npad 0": "will be removed in npad 0.4",
    r"\bseveral times for several\b": "repeat it for several",
    r"\b(?:a|an) (?:file|line|object|folder) each\b": "one file per recording",
    r"\b[Ii]n the place of\b": "in place of, instead of",
    rf"\bone (?:sentence|text|picture|file|object) an? (?:{UNITS})\b": "one sentence per line",
    r"\bcan tell\b": "within sampling error",
    r"\bgo(?:es|ing)? on [a-z]+ing\b": "keeps waiting",
    r"\b(?:from|of|be) (?:a )?strangers?\b": "untrusted",
    r"\b(?:error|exception|failure|mistakes?) (?:in it )?(?:is|becomes|are) one line\b": "prints",
    r"\bis for \w+ to say\b|'s selector to say\b": "decides",
}
EXEMPT = {"tests/project/test_wording.py"}  # has all phrases


def paths() -> list[Path]:
    """Files with prose that people wrote."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    found += [path for path in ROOT.glob("*") if path.name not in ("CHANGELOG.md",)]
    names = {path.relative_to(ROOT).as_posix(): path for path in found if path.is_file()}
    texts = (p for n, p in names.items() if p.suffix in KINDS or p.name == "Makefile")
    return sorted(path for path in texts if path.relative_to(ROOT).as_posix() not in EXEMPT)


def found_in(text: str) -> list[tuple[int, str, str]]:
    """The line, the words and the advice of every phrase in a text."""
    found = []
    for pattern, advice in PHRASES.items():
        for match in re.finditer(pattern, text, re.MULTILINE):
            line = text.count("\n", 0, match.start()) + 1
            found.append((line, match[0].strip(), advice))
    return sorted(found)


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("It runs one thread a model.", "thread a model"),
        ("the parts within it, too.", ", too"),
        ("it is none of npad's", "none of npad's"),
        ("of equals the first", "of equals"),
        ("what came of each part", "what came of"),
        ("Of 104 decoders, those within 16 calls a sentence", "calls a sentence"),
    ],
)
def test_a_phrase_is_found(text, phrase):
    assert [words for _, words, _ in found_in(text)] == [phrase]


@pytest.mark.parametrize(
    "text", ["one thread per model", "It is too large, too slow\nand old.", "rows of equal length"]
)
def test_plain_sentences_pass(text):
    assert found_in(text) == []


def test_no_file_has_an_idiosyncratic_phrase():
    places = [
        f"{path.relative_to(ROOT)}:{line}: {words!r}; rather: {advice}"
        for path in paths()
        for line, words, advice in found_in(path.read_text(encoding="utf-8"))
    ]
    assert not places, "\n".join(places)
