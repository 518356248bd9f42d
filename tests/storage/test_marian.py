"""Files in Marian's format: what is read, and that damage gets one clear line."""

from __future__ import annotations

import gzip
import random
import struct
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("sentencepiece")

from firefox_cases import OPTIONS, marian_bytes, shortlist_bytes, weights
from npad.errors import NpadError, StorageError
from npad.models.ssru import SSRUTransformer
from npad.storage import marian
from npad.storage.marian import Shortlist, read_marian

CONTENT = marian_bytes(weights(6), int8=["Wemb", "decoder_l1_ffn_W1"])
TWO = np.ones((2, 2), np.float32)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(CONTENT)
    return path


def test_matrices_lie_outputs_first_and_embeddings_as_they_are(file):
    made, read = weights(6), read_marian(file).weights
    assert np.array_equal(read["decoder_l2_ffn_W1"].numpy(), made["decoder_l2_ffn_W1"].T)
    assert np.array_equal(read["decoder_l2_ffn_b1"].numpy(), made["decoder_l2_ffn_b1"][0])
    for name, expected in (
        ("decoder_l1_ffn_W1", made["decoder_l1_ffn_W1"].T),
        ("Wemb", made["Wemb"]),
    ):
        error = np.abs(read[name].numpy() - expected).max()
        assert 0 < error <= np.abs(expected).max() / 127 / 2 + 1e-6
    assert set(read) == set(made)


def test_options_are_the_top_level_of_the_configuration(file):
    options = {name: value.strip('"') for name, value in OPTIONS.items()}
    assert read_marian(file).options == options
    text = b'a: "1"\n b: 2\n- c: 3\n#d: 4\nx-y: 5\nx y: 6\nplain\n\0'
    assert marian._options(text) == {"a": "1", "x-y": "5", "x y": "6"}


def test_a_file_may_be_compressed(file):
    plain = read_marian(file)
    file.write_bytes(gzip.compress(CONTENT))
    compressed = read_marian(file)
    assert plain.weights.keys() == compressed.weights.keys()
    file.write_bytes(gzip.compress(CONTENT)[:-40])
    with pytest.raises(StorageError, match="cannot unpack"):
        read_marian(file)


def test_a_file_that_unpacks_to_too_much_is_refused(file, monkeypatch):
    monkeypatch.setattr(marian, "MAX_BYTES", 10_000)
    for size, message in ((10_000, "version is 0"), (10_001, "more than 10,000 bytes")):
        file.write_bytes(gzip.compress(bytes(size)))
        with pytest.raises(StorageError, match=message):
            read_marian(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cut or of another format"),
        (struct.pack("<QQ", 2, 1), "version is 2"),
        (struct.pack("<QQ", 1, 2**60), "claims 1,152,921,504,606,846,976 items"),
        (struct.pack("<QQ4Q", 1, 1, 2**40, 0x404, 2, 8), "name is too long"),
        (struct.pack("<QQ4Q", 1, 1, 4, 0x404, 2**40, 8), "too many dimensions"),
        (marian_bytes({"a": np.ones((2, 2), np.float32)})[:-30], "ends within"),
        (marian_bytes(dict.fromkeys("ab", TWO)).replace(b"b\0", b"a\0"), "holds 'a' twice"),
        (marian_bytes({"a": np.full((2, 2), np.nan, np.float32)}), "infinite or undefined"),
    ],
)
def test_damage_is_named(file, content, message):
    file.write_bytes(content)
    with pytest.raises(StorageError, match=message):
        read_marian(file)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"n" * 255: np.ones((2, 2), np.float32)}, ""),  # and a zero byte
        ({"n" * 256: np.ones((2, 2), np.float32)}, "name is too long"),
        ({"a": np.ones((1, 1, 2, 2), np.float32)}, ""),
        ({"a": np.ones((1, 1, 1, 2, 2), np.float32)}, "too many dimensions"),
        ({str(i): np.ones((1, 1), np.float32) for i in range(7)}, ""),
        ({str(i): np.ones((1, 1), np.float32) for i in range(8)}, "claims 9 items, more than 8"),
    ],
    ids=range(6),
)
def test_limits_are_exact(file, monkeypatch, values, message):
    monkeypatch.setattr(marian, "MAX_ITEMS", 8)  # the options are an item
    file.write_bytes(marian_bytes(values))
    if message:
        with pytest.raises(StorageError, match=message):
            read_marian(file)
    else:
        assert set(read_marian(file).weights) == set(values)


@pytest.mark.parametrize("factor", [0.25, 0.0, -1.0, float("inf"), float("nan")])
def test_the_factor_of_integers_is_positive_and_finite(file, factor):
    content = marian_bytes({"a_W1": np.full((2, 3), 508, np.float32)}, int8=["a_W1"])
    sound = struct.pack("<f", 0.25)
    assert content.count(sound) == 1
    file.write_bytes(content.replace(sound, struct.pack("<f", factor)))
    if factor == 0.25:
        assert read_marian(file).weights["a_W1"].tolist() == [[508] * 2] * 3
    else:
        with pytest.raises(StorageError, match=f"the factor of 'a_W1' is {factor}"):
            read_marian(file)


def test_other_types_are_refused_by_number(file):
    file.write_bytes(
        marian_bytes({"a": np.ones((2, 2), np.float32)}).replace(
            struct.pack("<4Q", 2, 0x404, 2, 16), struct.pack("<4Q", 2, 0x402, 2, 16)
        )
    )
    with pytest.raises(StorageError, match="'a' has type 0x402"):
        read_marian(file)


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (marian.FLOAT32, np.arange(6, dtype=np.float32).tobytes(), [[0, 3], [1, 4], [2, 5]]),
        (marian.INT8_GEMM, bytes(range(6)) + struct.pack("<f", 2), [[0, 0.5], [1, 1.5], [2, 2.5]]),
    ],
)
def test_a_matrix_needs_all_of_its_bytes(kind, values, expected):
    read = marian._tensor("a", kind, (2, 3), memoryview(values))
    assert read.tolist() == expected
    with pytest.raises(marian._DamagedError, match=f"{len(values) - 1} bytes; npad reads"):
        marian._tensor("a", kind, (2, 3), memoryview(values[:-1]))


@pytest.mark.parametrize("shape", [(), (0, 5), (-1, 5), (-3, -5)])
def test_a_shape_without_numbers_is_refused(file, shape):
    content = marian_bytes({"a": np.ones((3, 5) if shape else (), np.float32)})
    dimensions = struct.pack("<2i", 3, 5)
    assert content.count(dimensions) == bool(shape)
    file.write_bytes(content.replace(dimensions, struct.pack(f"<{len(shape)}i", *shape)))
    with pytest.raises(StorageError, match=r"'a' has type 0x404, \d+ bytes; npad reads"):
        read_marian(file)


LISTS = [(), (5,), (4, 7, 5), (8,)]  # of four source tokens


@pytest.mark.parametrize("vocabulary", [9, 12])
def test_a_shortlist_is_the_first_tokens_those_of_the_source_and_its_own(file, vocabulary):
    file.write_bytes(shortlist_bytes(LISTS))
    source = [[2, 0], [1, 3, 3, 0], [0]]
    allowed = Shortlist.read(file, 4, vocabulary).allowed(source, vocabulary)
    for tokens, found in zip(source, allowed, strict=True):
        expected = {0, 1, 2, *tokens, *(token for own in tokens for token in LISTS[own])}
        assert set(found.nonzero().flatten().tolist()) == expected


HEAD = {"magic": 0, "first": 16, "starts": 32, "count": 40, "start": 48, "second": 56, "end": 80}


@pytest.mark.parametrize(
    ("field", "value", "sound"),
    [
        *[("first", 9, True), ("first", 10, False), ("magic", 0, False), ("starts", 6, False)],
        *[("starts", 4, False), ("count", 6, False), ("count", 4, False), ("start", 1, False)],
        *[("second", 1, True), ("second", 2, False), ("second", 2**62, False), ("end", 4, False)],
        *[("token", 8, True), ("token", 9, False), ("token", 2**32 - 1, False), ("token", 0, True)],
    ],
)
def test_the_numbers_of_a_shortlist_have_bounds(file, field, value, sound):
    content = bytearray(shortlist_bytes(LISTS))
    place, kind = (len(content) - 4, "<I") if field == "token" else (HEAD[field], "<Q")
    struct.pack_into(kind, content, place, value)
    file.write_bytes(content)
    if sound:
        lists = Shortlist.read(file, 4, 9)
        assert lists.allowed([[0, 1, 2, 3]], 9).shape == (1, 9)
        own = replace(lists, first=0, places=torch.zeros(5, dtype=torch.long))
        assert own.allowed([[0, 2, 3]], 3).tolist() == [[True, False, True]]
    else:
        with pytest.raises(StorageError, match="is not a shortlist of 4 and 9 tokens"):
            Shortlist.read(file, 4, 9)
    for size in (0, 47, len(content) - 1):
        file.write_bytes(content[:size])
        with pytest.raises(StorageError, match="is not a shortlist"):
            Shortlist.read(file, 4, 9)


@pytest.mark.parametrize("seed", range(30))
def test_a_damaged_shortlist_gets_one_line_or_is_bounded(file, seed):
    generator, content = random.Random(seed), bytearray(shortlist_bytes(LISTS))
    content[generator.randrange(len(content))] = generator.choice((0, 1, 9, 0x7F, 0x80, 0xFF))
    file.write_bytes(content[: len(content) - (seed % 5 == 0)])
    try:
        message = str(Shortlist.read(file, 4, 9).allowed([[0, 1, 2, 3]], 9).shape)
    except StorageError as error:
        message = str(error)
    assert message in (f"{file} is not a shortlist of 4 and 9 tokens", "torch.Size([1, 9])")


@pytest.mark.parametrize("seed", range(60))
def test_random_damage_gets_one_line_or_a_model(file, seed):
    generator, content = random.Random(seed), bytearray(CONTENT)
    head = 16 + 32 * struct.unpack_from("<Q", CONTENT, 8)[0] + 4_000
    for _ in range(generator.randint(1, 4)):
        place = generator.randrange(head if generator.random() < 0.9 else len(content))
        content[place] = generator.choice((0, 1, 0x7F, 0x80, 0xFF, generator.randrange(256)))
    if generator.random() < 0.2:
        del content[generator.randrange(len(content)) :]
    file.write_bytes(content)
    try:
        damaged = read_marian(file)
        SSRUTransformer(damaged.weights, damaged.options)
    except NpadError as error:
        message = str(error)
    else:
        message = ""
    assert "\n" not in message
