"""The texts of an experiment are found by their names."""

from __future__ import annotations

import pytest

from npad import InvalidInput
from npad.reproduce.bench import EvaluationSet
from npad.reproduce.data import ParallelText, concatenate


def test_texts_are_found_by_name(tmp_path):
    for name in ("news", "books", "valid-2013", "test-a", "test-b"):
        for language in ("en", "cs"):
            (tmp_path / f"{name}.{language}").write_text(f"{name} {language}\n")
    found = ParallelText.find(tmp_path, "en")
    assert list(found.train) == ["books", "news"]
    assert list(found.sets()) == ["2013", "a", "b"]
    assert found.sets()["b"] == EvaluationSet(["test-b en"], ["test-b cs"])
    assert [path.read_text() for path in concatenate(found.train, tmp_path / "new")] == [
        "books en\nnews en\n",
        "books cs\nnews cs\n",
    ]
    (tmp_path / "news.de").write_text("x")
    with pytest.raises(InvalidInput, match="has texts in cs, de; say which: --to"):
        ParallelText.find(tmp_path, "en")
    with pytest.raises(InvalidInput, match="has books in one of en and de only"):
        ParallelText.find(tmp_path, "en", "de")
    for languages in (("fr",), ("en", "fr")):
        with pytest.raises(
            InvalidInput, match=r"has no texts NAME.fr; it has cs, en, de: see --from"
        ):
            ParallelText.find(tmp_path, *languages)
    with pytest.raises(InvalidInput, match="the source and the target language are both en"):
        ParallelText.find(tmp_path, "en", "en")
    (tmp_path / "news.de.gz").touch()
    with pytest.raises(InvalidInput, match=r"has news.de and news.de.gz; which of them is news\?"):
        ParallelText.find(tmp_path, "en", "cs")


def test_sets_of_one_name_keep_their_own(tmp_path):
    """Or a test set would take the validation set's place, and every choice would be made on it."""
    for name in ("valid-2013", "test-2013", "test-2014"):
        for language in ("en", "cs"):
            (tmp_path / f"{name}.{language}").write_text(f"{name}\n")
    sets = ParallelText.find(tmp_path, "en").sets()
    assert {name: pairs.sources for name, pairs in sets.items()} == {name: [name] for name in sets}
    assert list(sets) == ["valid-2013", "test-2013", "test-2014"]
    (tmp_path / "test-2014.en").write_text("\n \n")
    (tmp_path / "test-2014.cs").write_text("\n \n")
    with pytest.raises(InvalidInput, match=r"test-2014.en has no text in it"):
        ParallelText.find(tmp_path, "en").sets()


def test_texts_that_are_no_pairs_are_not_concatenate(tmp_path):
    for name, lines in (("aa.en", 3), ("aa.cs", 2), ("bb.en", 2), ("bb.cs", 3)):
        (tmp_path / name).write_text("x\n" * lines)
    files = {name: (tmp_path / f"{name}.en", tmp_path / f"{name}.cs") for name in ("aa", "bb")}
    with pytest.raises(InvalidInput, match=r"aa.en has 3 lines and .*aa.cs has 2"):
        concatenate(files, tmp_path / "new")
