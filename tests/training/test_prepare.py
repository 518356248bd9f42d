"""From parallel text to a token store: nothing lost, nothing left over, the rest counted."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import threading
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pytest

from npad import InvalidInput
from npad.errors import StorageError
from npad.models.encoders.sound import STRIDE
from npad.storage.atomic import exclusive_lock
from npad.storage.regular import seal
from npad.text.subwords import MAX_CHARACTERS_PER_TOKEN, Subwords
from npad.training import prepare as module
from npad.training.prepare import prepare
from npad.training.sources import SOUND_STEPS, Side, Sounds, SourceKind, _shaped, mapped
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
    assert isinstance(store.train.source.tokens, np.memmap)


def test_a_store_does_not_depend_on_the_size_of_chunks(tmp_path, monkeypatch):
    store = small_store(tmp_path / "a")
    monkeypatch.setattr(module, "CHUNK", 7)
    other = small_store(tmp_path / "b")
    for side in ("source", "target"):
        assert np.array_equal(getattr(store.train, side).tokens, getattr(other.train, side).tokens)
        assert np.array_equal(getattr(store.train, side).ends, getattr(other.train, side).ends)


def test_empty_and_long_pairs_are_dropped_and_counted(tmp_path):
    (tmp_path / "a").write_text("one\n \ntwo\nthree\n" + "long " * 20 + "\nsix\n")
    (tmp_path / "b").write_text("eins\nzwei\n\ndrei\nkurz\n" + "lang " * 20 + "\n")
    store = prepare(tmp_path / "store", (tmp_path / "a", tmp_path / "b"), max_length=12)
    counts = {"pairs": 6, "kept": 2, "empty": 2, "long": 2, "tokens": [8, 8]}
    assert store.about["splits"]["train"] == counts
    assert texts(store, "source") == ["one", "three"]
    assert store.valid is None


def test_a_line_too_long_by_its_characters_is_neither_learnt_from_nor_tokenised(
    tmp_path, monkeypatch
):
    read = []
    encode, learn = Subwords.encode, Subwords.learn

    def noted(texts):
        texts = list(texts)
        read.extend(texts)
        return texts

    monkeypatch.setattr(Subwords, "encode", lambda self, texts: encode(self, noted(texts)))
    monkeypatch.setattr(Subwords, "learn", lambda texts, size: learn(noted(texts), size))
    (tmp_path / "a").write_text("one\n" + "a" * (12 * MAX_CHARACTERS_PER_TOKEN + 1) + "\nthree\n")
    (tmp_path / "b").write_text("eins\nzwei\ndrei\n")
    store = prepare(tmp_path / "store", (tmp_path / "a", tmp_path / "b"), max_length=12)
    counts = store.about["splits"]["train"]
    assert (counts["pairs"], counts["kept"], counts["long"]) == (3, 2, 1)
    assert "three" in read
    assert max(map(len, read)) <= 12 * MAX_CHARACTERS_PER_TOKEN


def test_a_joint_vocabulary_is_one_and_given_tokenizers_are_kept(tmp_path):
    text = reversal(tmp_path / "text", train=50)
    files = (text / "train.src", text / "train.tgt")
    joint = prepare(tmp_path / "joint", files, vocabulary=(300, 310), joint=True)
    assert (joint.about["vocabulary"], joint.about["joint"]) == ([300, 300], True)
    source, target = joint.subwords
    assert source.encode(["bade um"]) == target.encode(["bade um"])
    given = tuple(tmp_path / f"joint/{side}.tokenizer.json" for side in ("source", "target"))
    again = prepare(tmp_path / "again", files, tokenizers=given)
    assert again.about["vocabulary"] == joint.about["vocabulary"]
    assert texts(again, "target") == texts(joint, "target")


def test_subwords_are_learnt_from_a_sample_spread_over_the_text(tmp_path):
    (tmp_path / "a").write_text("".join(f"line {i}\n" for i in range(100)))
    sample = [f"line {number}" for number in (24, 49, 74, 99)]
    assert list(module._sampled(tmp_path / "a", 100, 4, 7)) == sample
    assert len(list(module._sampled(tmp_path / "a", 100, 1000, 7))) == 100


@contextmanager
def fed(pipe, content):
    """A pipe into which another thread writes."""
    os.mkfifo(pipe)
    feeder = threading.Thread(target=lambda: pipe.write_bytes(content))
    feeder.start()
    yield pipe
    feeder.join()


def test_packed_files_and_pipes_are_read_too(tmp_path):
    text = reversal(tmp_path / "text", train=50)
    packed = lzma.compress((text / "train.src").read_bytes())
    with (
        fed(tmp_path / "a", packed) as a,
        fed(tmp_path / "b", (text / "train.tgt").read_bytes()) as b,
    ):
        store = prepare(tmp_path / "store", (a, b), vocabulary=(300, 300))
    assert texts(store, "source") == (text / "train.src").read_text().splitlines()
    assert texts(store, "target") == (text / "train.tgt").read_text().splitlines()
    assert not (tmp_path / "store/streams").exists()


def test_a_vocabulary_beyond_16_bits_is_stored_in_32(tmp_path):
    from npad.training.store import PairCorpus, SideWriter, dtypes

    sizes = (70_000, 300)
    assert dtypes(sizes) == ["uint32", "uint16"]
    assert dtypes([(1 << 16) + 1, 1 << 16]) == ["uint32", "uint16"]
    sides = {"source": [[69_999, 1], [2]], "target": [[299], [4, 5]]}
    (tmp_path / "train").mkdir()
    for (side, sentences), dtype in zip(sides.items(), dtypes(sizes), strict=True):
        with SideWriter(tmp_path / "train", side, dtype) as writer:
            writer.add(sentences)
    corpus = PairCorpus.open(tmp_path / "train", dtypes(sizes))
    assert isinstance(corpus.source, Side)
    assert corpus.source.padded(np.array([1, 0]), 3, 0).tolist() == [[2, 0, 0], [69_999, 1, 0]]
    assert corpus.target.padded(np.array([0, 1]), 2, 0).tolist() == [[299, 0], [4, 5]]


def test_a_packed_stream_that_is_cut_off_is_named(tmp_path):
    packed = gzip.compress(b"one\ntwo\n" * 500)[:-20]
    (tmp_path / "text").write_text("one\ntwo\n")
    with fed(tmp_path / "pipe", packed) as pipe, pytest.raises(InvalidInput, match="pipe is damag"):
        prepare(tmp_path / "store", (pipe, tmp_path / "text"))
    assert not (tmp_path / "store").exists()


def test_one_process_at_a_time_prepares_a_store_and_none_writes_over_it(tmp_path):
    with (
        exclusive_lock(tmp_path / ".store.lock", "preparing it"),
        pytest.raises(InvalidInput, match=r"another process is preparing .*store; wait for it"),
    ):
        small_store(tmp_path)
    store = small_store(tmp_path)
    assert not (tmp_path / ".store.lock").exists()
    with pytest.raises(InvalidInput, match=r"store exists already"):
        prepare(store.folder, ("-", "-"))


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (b"a\nb\nc\n", b"a\nb\n", "a has 3 lines and .*b has 2; line i of the two must be a pair"),
        (b"", b"", "are empty"),
        (b"a\n", b"\n", "no pair of .* is left: 1 are empty and 0 longer"),
        (b"\n \n", b"a\nb\n", "no pair of .* is left: 2 are empty and 0 longer than 100 tokens"),
        (b"fine\n\xff\n", b"a\nb\n", "line 2: byte 0xff"),
    ],
    ids=["misaligned", "empty", "line", "blank", "bytes"],
)
def test_a_mistake_leaves_nothing_behind(tmp_path, source, target, message):
    (tmp_path / "a").write_bytes(source)
    (tmp_path / "b").write_bytes(target)
    with pytest.raises(InvalidInput, match=message):
        prepare(tmp_path / "store", (tmp_path / "a", tmp_path / "b"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_damaged_store_is_named(tmp_path):
    store = small_store(tmp_path)
    path = tmp_path / "store/train/source.tokens"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(StorageError, match=r"source.tokens is damaged: [\d,]+ tokens, not [\d,]+"):
        _ = store.train
    for content, message in (
        ('{"format": 9}', "is of format 9; this npad reads 2; make it again with npad prepare"),
        ('{"format": 2}', "store.json is damaged or was edited: it has no digest"),
        (json.dumps(seal({"format": 2})), "'vocabulary' is missing"),
    ):
        (tmp_path / "store/store.json").write_text(content)
        with pytest.raises(StorageError, match=message):
            Store.open(tmp_path / "store")
    with pytest.raises(StorageError, match=r"is not a token store"):
        Store.open(tmp_path / "store/store.json")
    with pytest.raises(StorageError, match=r"is not a token store: it has no store.json"):
        Store.open(tmp_path)


def test_every_file_of_a_store_is_held_to_its_checksum(tmp_path):
    """Each byte that is changed would train other weights, or fail in the middle of it."""
    store = small_store(tmp_path)
    paths = [path for path in store.folder.rglob("*") if path.is_file()]
    listed = {str(path.relative_to(store.folder)) for path in paths}
    assert set(store.about["sha256"]) == listed - {"store.json"}
    assert store.verify() is store
    for name in store.about["sha256"]:
        path = store.folder / name
        content = path.read_bytes()
        path.write_bytes(content[:8] + bytes([content[8] ^ 1]) + content[9:])
        with pytest.raises(StorageError, match=f"{path.name} is damaged: its checksum is not"):
            store.verify()
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"splits": {"valid": {}}}, "splits must be train and valid, not"),
        ({"sha256": {}}, "sha256 does not list the files"),
    ],
)
def test_a_store_that_lists_other_files_is_refused(tmp_path, change, message):
    """Also where the digest is right."""
    store = small_store(tmp_path)
    plain = {name: value for name, value in store.about.items() if name != "digest"} | change
    (store.folder / "store.json").write_text(json.dumps(seal(plain)))
    with pytest.raises(StorageError, match=f"store.json is damaged: {message}"):
        Store.open(store.folder)


def test_a_tokenizer_of_another_size_is_refused(tmp_path):
    store = small_store(tmp_path)
    Subwords.learn(["x"], 257).save(store.folder / "target.tokenizer.json")
    with pytest.raises(StorageError, match=r"target.tokenizer.json has 257 tokens, not \d+"):
        _ = store.subwords


def test_progress_is_reported_by_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 50)
    text, reported = reversal(tmp_path / "text", train=120), []
    files = (text / "train.src", text / "train.tgt")
    prepare(
        tmp_path / "store", files, vocabulary=(300, 300), progress=lambda *x: reported.append(x)
    )
    reading = [("reading", 50, 0), ("reading", 100, 0)]
    encoding = [("encoding", done, 120) for done in (50, 100, 120)]
    assert reported == [*reading, *reading, ("learning subwords", 0, 0), *encoding]


def test_pairs_of_the_largest_length_are_kept(tmp_path):
    whole = small_store(tmp_path)
    longest = max(int(side.lengths.max()) for side in (whole.train.source, whole.train.target))
    files = (tmp_path / "text/train.src", tmp_path / "text/train.tgt")
    tokenizers = tuple(whole.folder / f"{side}.tokenizer.json" for side in ("source", "target"))
    for length in (longest, longest - 1):
        options = {"tokenizers": tokenizers, "max_length": length}
        counts = prepare(tmp_path / f"{length}", files, **options).about["splits"]["train"]
        assert counts["kept"] + counts["long"] == 120
        assert (counts["long"] > 0) == (length < longest)
    counts, lines = module.Counts(), [("123456", "12"), ("1", "1234567"), ("1234567", "1")]
    assert list(module._without_long_lines(lines, 6, counts)) == lines[:1]
    assert (counts.pairs, counts.long) == (2, 2)


def test_the_defaults_are_those_of_the_help():
    text, media = module.TextData(("a", "a")), module.MediaData(("a", "a"))
    assert (text.vocabulary, text.max_length, text.sample) == ((8000, 8000), 100, 2_000_000)
    assert (media.vocabulary, media.max_length) == (4000, 100)
    with pytest.raises(InvalidInput, match="size must be a whole number"):
        module.MediaData(("a", "a"), features={"size": 0})
    assert module.Counts() == module.Counts(0, 0, 0, 0, [0, 0])
    assert (text.valid, text.joint, text.languages, media.task) == (None, False, None, "caption")
    paths = module.TextData((Path("a"), "-"), tokenizers=("b", Path("c"))).absolute()
    assert paths.train == (os.path.abspath("a"), "-")
    assert paths.to_json()["tokenizers"] == [os.path.abspath(name) for name in "bc"]
    assert module.TextData((Path("a"), "b")).to_json()["train"] == ["a", "b"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"folder": 3}, "folder must be a path"),
        ({"progress": 3}, "progress must be a function of the task, the lines done and the lines"),
        ({"train": ("a",)}, "train must be two files, of the source and of the target, not"),
        ({"train": ("-", "-")}, "source and target cannot both be standard input"),
        ({"train": (".", "a")}, "cannot read ."),
        ({"valid": ("a", 3)}, "a file of valid must be a path"),
        ({"vocabulary": (300,)}, "vocabulary must be two sizes, of the source and of the target"),
        ({"vocabulary": (300, 0)}, "vocabulary: each must be a whole number of at least 1, not 0"),
        ({"languages": "english"}, "english"),
        ({"sample": 0}, "sample must be a whole number of at least 1, not 0"),
        ({"pairs": 3}, "data must be a token store's folder, or the fields of TextData"),
        ({"task": "smell", "vocabulary": 300}, "smell"),
        ({"task": "caption", "vocabulary": 300, "features": {"size": 0}}, "size must be a whole"),
        ({"task": "caption", "vocabulary": 300, "pairs": 3}, "the fields of MediaData"),
        ({"task": "caption", "vocabulary": 300, "tokenizer": 3}, "tokenizer must be a path"),
        ({"task": "speech", "vocabulary": 300, "train": (".", "b")}, "cannot read b: there is no"),
        ({"task": "caption", "vocabulary": 300, "weights": 3}, "weights must be a list of files"),
    ],
    ids=str,
)
def test_a_mistake_in_an_argument_is_named(tmp_path, monkeypatch, changes, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_text("one\ntwo\n")
    arguments = {"folder": tmp_path / "store", "train": ("a", "a"), "vocabulary": (300, 300)}
    with pytest.raises(InvalidInput, match=message):
        prepare(**arguments | changes)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("count", [0, 3])
def test_a_file_is_mapped_as_a_vector(tmp_path, count):
    (tmp_path / "file").write_bytes(np.arange(count, dtype=np.int32).tobytes())
    vector = mapped(tmp_path / "file", "int32")
    assert (vector.tolist(), vector.dtype) == (list(range(count)), np.int32)
    (tmp_path / "file").write_bytes(b"123")
    with pytest.raises(StorageError, match=r"cannot read .*file: Size of available data"):
        mapped(tmp_path / "file", "int32")


@pytest.mark.parametrize(
    ("task", "features", "message"),
    [
        ("caption", {"size": 1 << 20}, ""),
        ("caption", {"size": (1 << 20) + 1}, "size must be a whole number of at most 1048576"),
        ("caption", {"network": "efficientnet-lite1", "size": 240}, ""),
        ("caption", {"network": "vgg"}, "network must be one of 'efficientnet-lite1', not 'vgg'"),
        ("speech", {"network": "efficientnet-lite1"}, "a sound has no feature 'network'; it has"),
        ("speech", {"bins": 1, "rate": 1}, ""),
        ("speech", {"bins": 0}, "bins must be a whole number of at least 1, not 0"),
        ("speech", [], "features must be a dictionary"),
        ("smell", None, "task must be one of 'caption', 'speech', not 'smell'"),
    ],
)
def test_features_are_those_of_the_source(task, features, message):
    if message:
        with pytest.raises(InvalidInput, match=message):
            SourceKind.named(task, features)
    else:
        kind = SourceKind.named(task, features)
        assert kind.features == SourceKind.named(task).features | features
        assert kind.network == features.get("network")


def test_sentences_and_sounds_are_read_in_rows_that_are_rounded_up():
    side = Side(np.array([5, 6, 7, 8, 9], np.uint16), np.array([2, 2, 5]))
    tokens, lengths = side.read(np.array([2, 0, 1]), 3, 0)
    assert tokens.tolist() == [[7, 8, 9, 0, 0, 0], [5, 6, 0, 0, 0, 0], [0] * 6]
    assert lengths.tolist() == side.positions[[2, 0, 1]].tolist() == [4, 3, 1]
    frames = np.arange(10, dtype=np.float16).reshape(5, 2)
    sounds = Sounds(frames, np.array([2, 5]), np.array([1, 0]))
    rows, lengths = sounds.read(np.array([1, 0]), 2, 0)
    assert (lengths.tolist(), sounds.positions.tolist()) == ([2, 3], [1, 1])
    assert rows.shape == (2, 2 * SOUND_STEPS * STRIDE, 2)
    assert (rows[0, :2].tolist(), rows[1, :3].tolist()) == (
        frames[:2].tolist(),
        frames[2:].tolist(),
    )
    assert not rows[0, 2:].any()
    assert not rows[1, 3:].any()


def test_a_source_holds_whole_items(tmp_path):
    assert _shaped(np.arange(12), (2, 3), tmp_path).shape == (2, 2, 3)
    with pytest.raises(StorageError, match=r"the source of .* is damaged: 11 numbers"):
        _shaped(np.arange(11), (2, 3), tmp_path)


@pytest.mark.parametrize(
    ("files", "reason"),
    [(("-", "a"), ""), ((".", "a"), "it is a folder"), (("a", "b"), "there is no such file")],
)
def test_texts_are_files_or_standard_input(tmp_path, monkeypatch, files, reason):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").touch()
    for data in (module.TextData(files), module.TextData(("a", "a"), files)):
        with (
            pytest.raises(InvalidInput, match=f"^cannot read .: {reason}$")
            if reason
            else nullcontext()
        ):
            data.ensure_files()


def test_one_side_may_be_standard_input(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("eins\nzwei\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(b"one\ntwo\n"))))
    store = prepare(tmp_path / "store", ("-", tmp_path / "a"))
    assert (texts(store, "source"), texts(store, "target")) == (["one", "two"], ["eins", "zwei"])


def test_a_folder_is_no_manifest_and_no_wheel(tmp_path):
    (tmp_path / "a").touch()
    file, folder = str(tmp_path / "a"), str(tmp_path)
    module.MediaData((folder, file), weights=[file]).ensure_files()
    for data, rule in (
        (module.MediaData((folder, folder)), "a manifest"),
        (module.MediaData((folder, file), (folder, folder)), "a manifest"),
        (module.MediaData((folder, file), weights=[folder]), "a wheel or a file"),
    ):
        with pytest.raises(InvalidInput, match=f"it is a folder, and must be {rule}"):
            data.ensure_files()
