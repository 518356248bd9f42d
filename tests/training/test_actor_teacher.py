"""What an actor learns from: the beam's candidates, decoded once, and the targets among them."""

from __future__ import annotations

import numpy as np
import pytest

from npad import Beam, InvalidInput, decode
from npad.metrics.registry import METRICS
from npad.storage import checkpoint
from npad.training.actors import read_texts
from npad.training.teacher import BeamOutputs, Teacher, decode_sources, pairs_of
from steered_cases import ending, random_sources


@pytest.mark.parametrize("teacher", [Teacher(4), Teacher(5, 5)])
def test_the_candidates_are_those_of_the_beam(tmp_path, teacher, monkeypatch):
    monkeypatch.setattr("npad.training.teacher.PART_BATCHES", 1)
    monkeypatch.setattr("npad.training.teacher.MAX_ROWS", {"cuda": 40, "cpu": 20})
    model, sources = ending(), random_sources(23)
    parts = decode_sources(tmp_path, model, "x", sources, teacher)
    assert len(parts) > 2
    found = {place: hypotheses for part in parts for place, hypotheses in part.hypotheses()}
    assert sorted(found) == list(range(len(sources)))
    for place, hypotheses in found.items():
        limit = teacher.max_length(len(sources[place]))
        beam = Beam(teacher.width, nbest=teacher.candidates)
        expected = [h for h in decode(model, [sources[place]], beam, limit)[0] if h.finished]
        assert [tuple(tokens) for tokens, _ in hypotheses] == [h.tokens for h in expected]
        scores = [log_prob for _, log_prob in hypotheses]
        assert scores == pytest.approx([h.log_prob for h in expected], abs=1e-4)


def test_a_killed_pass_decodes_only_the_missing_parts(tmp_path, monkeypatch):
    monkeypatch.setattr("npad.training.teacher.PART_BATCHES", 1)
    monkeypatch.setattr("npad.training.teacher.MAX_ROWS", {"cuda": 20, "cpu": 20})
    model, sources, decoded = ending(), random_sources(30), []
    step = decode

    def counting(model, source, *rest):
        decoded.extend(source)
        return step(model, source, *rest)

    monkeypatch.setattr("npad.training.teacher.decode", counting)
    stops = iter([False, False, True])
    first = decode_sources(tmp_path, model, "x", sources, Teacher(4), stop=lambda: next(stops))
    assert len(decoded) == 10 == sum(len(part.places) for part in first)
    (tmp_path / ".part-00004.safetensors.part").write_bytes(b"half a part")
    whole = decode_sources(tmp_path, model, "x", sources, Teacher(4))
    assert len(decoded) == 30
    decode_sources(tmp_path, model, "x", sources, Teacher(4))
    assert len(decoded) == 30
    path = sorted(tmp_path.glob("part-*"))[0]
    path.write_bytes(path.read_bytes()[:-3])
    again = decode_sources(tmp_path, model, "x", sources, Teacher(4))
    assert len(decoded) == 35  # the damaged part alone
    for a, b in zip(whole, again, strict=True):
        assert all(np.array_equal(getattr(a, name), getattr(b, name)) for name in vars(a))
    decode_sources(tmp_path, model, "other weights", sources, Teacher(4))
    assert len(decoded) == 65


def test_targets_are_the_best_by_their_measure():
    lengths = np.array([[2, 1, 3], [2, 1, -1], [-1, -1, -1]], dtype=np.int32)
    log_probs = np.array([[-3, -3.5, -3.8], [-1, -2, 0], [0, 0, 0]], dtype=np.float32)
    tokens = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9], dtype=np.int32)
    parts = [BeamOutputs(np.array([2, 0, 1]), lengths, log_probs, tokens)]
    sources = [[5], [6, 6], [7]]

    def targets(*names, **more):
        pairs = pairs_of(parts, sources, names, **more)
        starts = pairs.target.ends - pairs.target.lengths
        return [
            pairs.target.tokens[a:b].tolist()
            for a, b in zip(starts, pairs.target.ends, strict=True)
        ]

    assert targets("beam") == [[1, 2], [7, 8]]
    assert targets("length-normalised") == [[4, 5, 6], [7, 8]]
    assert targets("beam", known={2: [1, 2], 0: [9]}) == [[7, 8]]
    assert targets("beam", "length-normalised") == [[1, 2], [4, 5, 6], [7, 8], [7, 8]]

    def words(hypotheses):
        return [" ".join(map(str, tokens)) for tokens in hypotheses]

    references = ["9", "", "4 5 6"]
    for metric in (name for name in METRICS if METRICS[name].needs_references):
        assert targets(metric, references=references, detokenise=words) == [[4, 5, 6], [9]]
    with pytest.raises(InvalidInput, match="give --references, or choose the target beam"):
        targets("chrf")
    with pytest.raises(InvalidInput, match="target must be"):
        targets("best")


def test_sources_that_repeat_are_decoded_once(tmp_path, trained):
    subwords = checkpoint.load(trained).subwords[0]
    (tmp_path / "a").write_text("babe\n\nbibo\nbabe\n" + "babe " * 40 + "\n")
    texts = read_texts([str(tmp_path / "a")], [], subwords, 10)
    assert texts.sources == subwords.encode(["babe", "bibo"])
    (tmp_path / "b").write_text("x\n")
    with pytest.raises(InvalidInput, match="line i of both must be a pair"):
        read_texts([str(tmp_path / "a")], [str(tmp_path / "b")], subwords, 10)
