"""The languages of a model: stored with its data, in its name, or given to the server."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import npad
from npad import InvalidInput
from npad.pipelines.names import language_pair, languages_of
from npad.serve.limits import Limits
from npad.serve.models import serve
from npad.training.prepare import TextData
from runs import pair_options, reversal
from serve_cases import serving

QUICK = ["--vocabulary", "300", "--units", "8", "--embedding", "6", "--updates", "1"]


@pytest.mark.parametrize(
    ("name", "pair"),
    [
        ("en-de", ("en", "de")),
        ("/data/runs/eng-ces", ("eng", "ces")),
        ("Helsinki-NLP/opus-mt-tc-big-en-de", ("en", "de")),
        ("facebook/nllb:eng_Latn-deu_Latn", ("eng_Latn", "deu_Latn")),
        ("facebook/bart-base", None),
        ("runs/small", None),
        ("runs/my-en-de", None),
        (None, None),
    ],
)
def test_names_that_end_with_two_codes_say_the_languages(name, pair):
    assert languages_of(name) == pair


@pytest.mark.parametrize("text", ["english", "en-", "en-de-fr", "EN-DE", "", 5])
def test_languages_are_two_codes(text):
    with pytest.raises(InvalidInput, match="such as en-de, not"):
        language_pair(text)


def test_languages_of_the_data_are_stored_with_the_model(tmp_path, npad_here):
    """Prepared or trained with --languages; shown by info, and the server has a route for them."""
    text, folder = reversal(tmp_path / "text", train=60, valid=10), tmp_path / "run"
    npad_here(
        *("train", folder, "--languages", "tlh-en", *QUICK),
        *pair_options(text),
    )
    shown = npad_here("info", folder, "--json").stdout
    assert json.loads(shown)["languages"] == "tlh-en"
    assert "languages" in npad_here("info", folder).stdout
    translator = npad.load(folder)
    assert translator.languages == ("tlh", "en")
    with serving(serve("run", translator, Limits())) as client:
        assert [entry["code"] for entry in client.get("/languages").json] == ["tlh", "en"]
        asked = {"q": "ich", "source": "tlh", "target": "en"}
        assert client.post("/translate", asked).status == 200


def test_a_folder_without_languages_has_those_of_its_name(tmp_path, npad_here, monkeypatch):
    text, folder = reversal(tmp_path / "text", train=60, valid=10), tmp_path / "en-cs"
    npad_here("train", folder, *QUICK, *pair_options(text))
    assert npad.load(folder).languages == ("en", "cs")
    monkeypatch.chdir(folder)
    assert npad.load(".").languages == ("en", "cs")
    folder.rename(tmp_path / "mine")
    assert npad.load(tmp_path / "mine").languages is None


def test_languages_that_cannot_be_are_refused(refused_here, tmp_path):
    asked = ["serve", "--port", "0", "--languages"]
    line = refused_here(*asked, "en-cs")
    assert "write --languages en-de=en-cs" in line
    line = refused_here(*asked, "fr=en-cs")
    assert "there is no fr among en-de, toy" in line
    line = refused_here(*asked, "en-de=czech")
    assert "such as en-de, not 'czech'" in line
    with pytest.raises(InvalidInput, match="such as en-de, not 'both'"):
        TextData(("a", "b"), languages="both")
    with pytest.raises(InvalidInput, match="languages"):
        replace(npad.load("toy"), languages=("German", "English"))
