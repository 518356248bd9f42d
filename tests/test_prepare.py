"""From parallel text to a token store: nothing lost, nothing left over, the rest counted."""

from __future__ import annotations

import gzip
import lzma
import os
import threading

import numpy as np
import pytest

from npad import InvalidInput
from npad.errors import StorageError
from npad.text.subwords import LETTERS, Subwords
from npad.training import prepare as module
from npad.training.folders import alone
from npad.training.prepare import prepare
from npad.training.store import Store
from runs import reversal, small_store


def texts(store, side):
    """What a split says, decoded."""
    which = getattr(store.train, side)
    subwords = store.subwords[side == "target"]
    rows = which.padded(np.arange(len(which.ends)), int(which.lengths.max()), 0)
    return [subwords.decode(row[:n].tolist()) for row, n in zip(rows, which.lengths, strict=True)]


def test_a_store_holds_what_the_text_says(tmp_path):
    store = small_store(tmp_path)
    assert texts(store, "source") == (tmp_path / "text/train.src").read_text().splitlines()
    assert texts(store, "target") == (tmp_path / "text/train.tgt").read_text().splitlines()
    assert len(store.valid) == 20
    assert isinstance(store.train.source.symbols, np.memmap)


def test_chunks_do_not_matter(tmp_path, monkeypatch):
    store = small_store(tmp_path / "a")
    monkeypatch.setattr(module, "CHUNK", 7)
    other = small_store(tmp_path / "b")
    for side in ("source", "target"):
        assert np.array_equal(getattr(store.train, side).symbols, getattr(other.train, side).symbols)
        assert np.array_equal(getattr(store.train, side).ends, getattr(other.train, side).ends)


def test_empty_and_long_pairs_are_dropped_and_counted(tmp_path):
    (tmp_path / "a").write_text("one\n \ntwo\nthree\n" + "long " * 20 + "\nsix\n")
    (tmp_path / "b").write_text("eins\nzwei\n\ndrei\nkurz\n" + "lang " * 20 + "\n")
    store = prepare(tmp_path / "store", (tmp_path / "a", tmp_path / "b"), max_length=12)
    assert store.about["splits"]["train"] == {"pairs": 6, "kept": 2, "empty": 2, "long": 2, "symbols": [8, 8]}
    assert texts(store, "source") == ["one", "three"]
    assert store.valid is None


def test_a_line_too_long_by_its_characters_is_neither_learnt_from_nor_tokenised(tmp_path, monkeypatch):
    read = []
    encode, learn = Subwords.encode, Subwords.learn
    monkeypatch.setattr(Subwords, "encode", lambda self, texts: read.extend(texts) or encode(self, texts))
    monkeypatch.setattr(Subwords, "learn", lambda texts, size: learn([read.append(one) or one for one in texts], size))
    (tmp_path / "a").write_text("one\n" + "a" * (12 * LETTERS + 1) + "\nthree\n")
    (tmp_path / "b").write_text("eins\nzwei\ndrei\n")
    store = prepare(tmp_path / "store", (tmp_path / "a", tmp_path / "b"), max_length=12)
    counts = store.about["splits"]["train"]
    assert (counts["pairs"], counts["kept"], counts["long"]) == (3, 2, 1)
    assert "three" in read
    assert max(map(len, read)) <= 12 * LETTERS


def test_a_joint_vocabulary_is_one_and_given_tokenizers_are_kept(tmp_path):
    text = reversal(tmp_path / "text", train=50)
    files = (text / "train.src", text / "train.tgt")
    joint = prepare(tmp_path / "joint", files, vocabulary=(300, 300), joint=True)
    source, target = joint.subwords
    assert source.encode(["bade um"]) == target.encode(["bade um"])
    given = tuple(tmp_path / f"joint/{side}.tokenizer.json" for side in ("source", "target"))
    again = prepare(tmp_path / "again", files, tokenizers=given)
    assert again.about["vocabulary"] == joint.about["vocabulary"]
    assert texts(again, "target") == texts(joint, "target")


def test_subwords_are_learnt_from_a_sample_spread_over_the_text(tmp_path):
    (tmp_path / "a").write_text("".join(f"line {i}\n" for i in range(100)))
    assert list(module._sampled(tmp_path / "a", 100, 4)) == ["line 24", "line 49", "line 74", "line 99"]
    assert len(list(module._sampled(tmp_path / "a", 100, 1000))) == 100


def test_packed_files_and_pipes_are_read_too(tmp_path):
    text = reversal(tmp_path / "text", train=50)
    packed, pipe = tmp_path / "src.xz", tmp_path / "pipe"
    packed.write_bytes(lzma.compress((text / "train.src").read_bytes()))
    os.mkfifo(pipe)
    feeder = threading.Thread(target=lambda: pipe.write_bytes((text / "train.tgt").read_bytes()))
    feeder.start()
    store = prepare(tmp_path / "store", (packed, pipe), vocabulary=(300, 300))
    feeder.join()
    assert texts(store, "target") == (text / "train.tgt").read_text().splitlines()
    assert not (tmp_path / "store/streams").exists()


def test_a_vocabulary_beyond_16_bits_is_stored_in_32(tmp_path):
    from npad.training.store import Corpus, Writer, dtypes

    sizes = (70_000, 300)
    assert dtypes(sizes) == ["uint32", "uint16"]
    writer = Writer(tmp_path / "train", sizes)
    writer.add([[[69_999, 1], [2]], [[299], [4, 5]]])
    writer.close()
    corpus = Corpus.open(tmp_path / "train", dtypes(sizes))
    assert corpus.source.padded(np.array([1, 0]), 3, 0).tolist() == [[2, 0, 0], [69_999, 1, 0]]
    assert corpus.target.padded(np.array([0, 1]), 2, 0).tolist() == [[299, 0], [4, 5]]


def test_a_packed_stream_that_is_cut_off_is_named(tmp_path):
    packed, pipe = gzip.compress(b"one\ntwo\n" * 500)[:-20], tmp_path / "pipe"
    (tmp_path / "text").write_text("one\ntwo\n")
    os.mkfifo(pipe)
    feeder = threading.Thread(target=lambda: pipe.write_bytes(packed))
    feeder.start()
    with pytest.raises(InvalidInput, match=r"pipe is damaged: "):
        prepare(tmp_path / "store", (pipe, tmp_path / "text"))
    feeder.join()
    assert not (tmp_path / "store").exists()


def test_one_process_at_a_time_prepares_a_store(tmp_path):
    with (
        alone(tmp_path / ".store.lock", "preparing it"),
        pytest.raises(InvalidInput, match=r"another process is preparing .*store; wait for it"),
    ):
        small_store(tmp_path)
    small_store(tmp_path)
    assert not (tmp_path / ".store.lock").exists()


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (b"a\nb\nc\n", b"a\nb\n", "a has 3 lines and .*b has 2; line i of the two must be a pair"),
        (b"", b"", "are empty"),
        (b"\n \n", b"a\nb\n", "no pair of .* is left: 2 are empty and 0 longer than 100 symbols"),
        (b"fine\n\xff\n", b"a\nb\n", "line 2: byte 0xff"),
    ],
    ids=["misaligned", "empty", "blank", "bytes"],
)
def test_a_mistake_leaves_nothing_behind(tmp_path, source, target, message):
    (tmp_path / "a").write_bytes(source)
    (tmp_path / "b").write_bytes(target)
    with pytest.raises(InvalidInput, match=message):
        prepare(tmp_path / "store", (tmp_path / "a", tmp_path / "b"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_store_is_not_written_over(tmp_path):
    store = small_store(tmp_path)
    with pytest.raises(InvalidInput, match=r"store is there already"):
        prepare(store.folder, ("-", "-"))


def test_a_damaged_store_is_named(tmp_path):
    store = small_store(tmp_path)
    path = tmp_path / "store/train/source.symbols"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(StorageError, match=r"source.symbols is damaged: [\d,]+ symbols, not [\d,]+"):
        _ = store.train
    (tmp_path / "store/store.json").write_text('{"format": 9}')
    with pytest.raises(StorageError, match=r"is of format 9; this npad reads 1"):
        Store.open(tmp_path / "store")
    for content, message in (
        ("[]", "is of format None"),
        ('{"format": 1}', "'dtypes' is missing"),
        ("{", "is damaged"),
    ):
        (tmp_path / "store/store.json").write_text(content)
        with pytest.raises(StorageError, match=message):
            Store.open(tmp_path / "store")
    with pytest.raises(StorageError, match=r"is no token store"):
        Store.open(tmp_path / "store/store.json")
    with pytest.raises(StorageError, match=r"is no token store: it has no store.json"):
        Store.open(tmp_path)
