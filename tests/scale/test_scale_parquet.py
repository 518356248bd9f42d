"""Corpora as tables."""

from __future__ import annotations

import pytest

from npad import Beam, InvalidInput
from npad.scale import Corpus, Decoding, Failed, Local, ModelSpec, formats, translate_corpus

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

SPEC = ModelSpec("toy", "cpu")
TEXTS = ["danke", None, "na ja", 3]


def table(path, texts, column="de"):
    parquet.write_table(pyarrow.Table.from_pydict({"n": [1] * len(texts), column: texts}), path)
    return path


def translated(source, output, **more):
    reported = {}
    corpus = Corpus(source, output, nbest=2, **more)
    with Local(SPEC) as workers:
        decoding = Decoding(Beam(3, nbest=2))
        translate_corpus(corpus, workers, SPEC, decoding, report=reported.__setitem__, unit=2)
    return parquet.read_table(output).to_pylist(), reported


def test_parquet_in_and_out(tmp_path):
    rows, reported = translated(
        table(tmp_path / "in.parquet", TEXTS[:3]), tmp_path / "out.parquet", field="de"
    )
    assert reported == {2: "its 'de' is not text"}
    assert [row["id"] for row in rows] == [0, 1, 2]
    assert [row["source"] for row in rows] == ["danke", "", "na ja"]
    assert [row["text"] for row in rows] == ["thanks", "", "well yes"]
    assert [row["log_prob"] is None for row in rows] == [False, True, False]
    assert [len(row["alternatives"] or []) for row in rows] == [1, 0, 1]
    assert {"signature", "chain", "finished", "noisy_log_prob"} <= rows[0].keys()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.parquet", "out.parquet"]


def test_tables_are_read_and_written_a_few_rows_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "ROWS", 2)
    path = table(tmp_path / "in.parquet", ["danke"] * 5, "text")
    assert list(formats.read_texts(path)) == ["danke"] * 5
    assert formats.count_texts(path) == 5
    rows, _ = translated(path, tmp_path / "out.parquet")
    assert [row["text"] for row in rows] == ["thanks"] * 5


def test_what_is_no_table_or_has_no_such_column_is_one_line(tmp_path):
    path = table(tmp_path / "in.parquet", ["danke"])
    with pytest.raises(InvalidInput, match="has no column 'en'; it has n, de: see --field"):
        list(formats.read_texts(path, "en"))
    numbers = table(tmp_path / "numbers.parquet", [1, 2])
    assert list(formats.read_texts(numbers, "de")) == [Failed("its 'de' is not text")] * 2
    path.write_bytes(b"PAR1 not")
    with pytest.raises(InvalidInput, match=r"cannot read .*in\.parquet: [^\n]+$"):
        formats.count_texts(path)
