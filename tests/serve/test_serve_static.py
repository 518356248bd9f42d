"""The files of the page: small, plain, and safe under a strict content security policy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import npad

STATIC = Path(npad.__file__).parent / "serve" / "static"
FILES = sorted(STATIC.iterdir())
SCRIPTS = [path for path in FILES if path.suffix == ".js"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_is_small_and_names_only_files_of_the_page(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 400
    assert set(re.findall(r"https?://[^\s\"']+", text)) <= {"http://www.w3.org/2000/svg"}
    named = re.findall(r"from \"\./([\w.-]+)\"", text) + re.findall(r"\"static/([\w.-]+)\"", text)
    assert {*named} <= {other.name for other in FILES}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_module_writes_text_and_never_markup(path):
    text = path.read_text(encoding="utf-8")
    for danger in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert danger not in text
    assert not re.search(r"setAttribute\([\"']style", text)


@pytest.mark.parametrize("name", ["index.html", "docs.html"])
def test_a_page_has_no_inline_script_or_style(name):
    text = (STATIC / name).read_text(encoding="utf-8")
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", text)


def test_every_identifier_that_a_module_asks_for_is_on_the_page():
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    asked = {
        name for path in SCRIPTS for name in re.findall(r"byId\(\"([\w-]+)\"\)", path.read_text())
    }
    assert asked
    assert asked <= set(re.findall(r"\sid=\"([\w-]+)\"", page))
