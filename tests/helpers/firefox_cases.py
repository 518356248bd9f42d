"""Tiny models of Firefox: random weights, written in Marian's format, with vocabularies."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import sentencepiece

OPTIONS = {
    "type": "transformer",
    "transformer-decoder-autoreg": "rnn",
    "dec-cell": "ssru",
    "enc-depth": "2",
    "dec-depth": "2",
    "transformer-heads": "2",
    "transformer-ffn-activation": "relu",
    "transformer-postprocess": "dan",
    "transformer-preprocess": '""',
}
WIDTH, INNER = 8, 12
TEXTS = ["the cat sat on the mat", "a dog ran in the park", "we like tea and bread", "good day"]


def weights(vocabulary: int, source_vocabulary: int | None = None, seed: int = 0):
    """Random weights as Marian names them; matrices are [inputs, outputs]."""
    generator = np.random.default_rng(seed)
    made = {}

    def matrix(name, *shape):
        made[name] = generator.normal(scale=0.5, size=shape).astype(np.float32)

    def norm(name):
        made[f"{name}_ln_scale"] = generator.uniform(0.5, 1.5, (1, WIDTH)).astype(np.float32)
        matrix(f"{name}_ln_bias", 1, WIDTH)

    def attention(name):
        for part in "qkvo":
            matrix(f"{name}_W{part}", WIDTH, WIDTH)
            matrix(f"{name}_b{part}", 1, WIDTH)
        norm(f"{name}_Wo")

    def feed_forward(name):
        for number, sizes in (("1", (WIDTH, INNER)), ("2", (INNER, WIDTH))):
            matrix(f"{name}_W{number}", *sizes)
            matrix(f"{name}_b{number}", 1, sizes[1])
        norm(f"{name}_ffn")

    for layer in ("l1", "l2"):
        attention(f"encoder_{layer}_self")
        feed_forward(f"encoder_{layer}_ffn")
        matrix(f"decoder_{layer}_rnn_W", WIDTH, WIDTH)
        matrix(f"decoder_{layer}_rnn_Wf", WIDTH, WIDTH)
        matrix(f"decoder_{layer}_rnn_bf", 1, WIDTH)
        norm(f"decoder_{layer}_rnn_ffn")
        attention(f"decoder_{layer}_context")
        feed_forward(f"decoder_{layer}_ffn")
    if source_vocabulary is None:
        matrix("Wemb", vocabulary, WIDTH)
    else:
        matrix("encoder_Wemb", source_vocabulary, WIDTH)
        matrix("decoder_Wemb", vocabulary, WIDTH)
    matrix("decoder_ff_logit_out_b", 1, vocabulary)
    return made


def marian_bytes(weights, options=OPTIONS, int8=()) -> bytes:
    """A file in Marian's format; the matrices named in `int8` are quantised."""
    items = []
    for name, values in weights.items():
        if name in int8:
            factor = np.float32(127 / np.abs(values).max())
            stored = values if name.endswith("Wemb") else values.T
            content = np.round(stored * factor).astype(np.int8).tobytes() + factor.tobytes()
            items.append((name, 0x4101, values.shape, content + bytes(252)))
            items.append((f"{name}_QuantMultA", 0x404, (1, 1), struct.pack("<f", 1.0)))
        else:
            items.append((name, 0x404, values.shape, values.tobytes()))
    text = "".join(f"{key}: {value}\n" for key, value in options.items()).encode() + b"\0"
    items.append(("special:model.yml", 0x101, (len(text),), text))
    names = [name.encode() + b"\0" for name, *_ in items]
    heads = zip(names, items, strict=True)
    out = struct.pack("<QQ", 1, len(items))
    out += b"".join(struct.pack("<4Q", len(n), i[1], len(i[2]), len(i[3])) for n, i in heads)
    out += b"".join(names)
    out += b"".join(struct.pack(f"<{len(shape)}i", *shape) for _, _, shape, _ in items)
    padding = -(len(out) + 8) % 256
    return out + struct.pack("<Q", padding) + bytes(padding) + b"".join(i[3] for i in items)


def vocabulary_bytes(size: int) -> bytes:
    """A SentencePiece model of `size` pieces: 0 is the end, 1 unknown."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 20),
        model_writer=model,
        vocab_size=size,
        hard_vocab_limit=False,
        eos_id=0,
        unk_id=1,
        bos_id=-1,
        minloglevel=2,
    )
    return model.getvalue()


def shortlist_bytes(lists, first=3) -> bytes:
    """A shortlist of the browser's engine: the tokens of each source token."""
    places = np.cumsum([0, *map(len, lists)], dtype=np.uint64)
    tokens = np.array([token for tokens in lists for token in tokens], dtype=np.uint32)
    head = struct.pack("<6Q", 0xF11A48D5013417F5, 0, first, 2, len(places), len(tokens))
    return head + places.tobytes() + tokens.tobytes()


def save(folder: Path, two_vocabularies: bool = False, int8=(), options=OPTIONS) -> Path:
    """Write a folder as Mozilla publishes it."""
    folder.mkdir(exist_ok=True)
    target = vocabulary_bytes(30)
    sizes = [_pieces(target)]
    if two_vocabularies:
        source = vocabulary_bytes(24)
        sizes.append(_pieces(source))
        (folder / "srcvocab.enpt.spm").write_bytes(source)
        (folder / "trgvocab.enpt.spm").write_bytes(target)
    else:
        (folder / "vocab.enpt.spm").write_bytes(target)
    content = marian_bytes(weights(*sizes), options, int8)
    (folder / "model.enpt.intgemm.alphas.bin").write_bytes(content)
    lists = [(token % 7 + 3, token % 11 + 3) for token in range(sizes[-1])]
    (folder / "lex.50.50.enpt.s2t.bin").write_bytes(shortlist_bytes(lists))
    return folder


def _pieces(model: bytes) -> int:
    return sentencepiece.SentencePieceProcessor(model_proto=model).get_piece_size()
