"""Every public function with arguments of wrong types works, or says why not."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from test_wrong_types_constructors import CALLS as CONSTRUCTORS
from test_wrong_types_constructors import SOUNDS, TABLE, TOY

import npad
from npad import NPAD, Beam, Greedy, InvalidInput, decode, score, signature
from npad.calibrate.calibrate import Options, Pairs, calibrate
from npad.calibrate.decoder_space import Candidate
from npad.calibrate.decoding_tasks import Translating
from npad.pipelines.loading import load_as
from npad.pipelines.transcription import Transcriber
from wrong_types import faults, nothing, pool, wrong_calls


def calibrated(translator, max_length, max_rows, sources, references, progress, **options):
    """Calibrate between two decoders."""
    candidates = [Candidate(f"beam {w}", "beam", Beam(w), "beam") for w in (1, 2)]
    task = Translating(translator, max_length, max_rows)
    pairs = Pairs.checked(sources, references)
    return calibrate(task, pairs, Options(**options), None, candidates, progress=progress)


def streamed(**arguments):
    return list(islice(TOY.stream(**arguments), 3))


CALLS = {
    "decode": (
        decode,
        {
            "model": TABLE,
            "source": [0, 0],
            "decoder": Beam(2),
            "max_length": 3,
            "ids": [1, 2],
            "max_rows": 4,
        },
    ),
    "decode with NPAD": (
        lambda **given: decode(TABLE, [0, 0], NPAD(chains=2), **given),
        {"max_length": 3, "ids": [1, 2], "max_rows": 4},
    ),
    "score": (score, {"model": TABLE, "source": [0], "targets": [[[1], [2, 1]]]}),
    "load": (npad.load, {"name": "toy", "device": "cpu", "precision": "float32"}),
    "signature": (signature, {"decoder": Beam(2), "model": TABLE}),
    "translate": (
        TOY.translate,
        {"sources": ["danke"], "decoder": Beam(2), "max_length": 5, "max_rows": 8},
    ),
    "stream": (
        streamed,
        {"sources": ["danke"], "decoder": Beam(2), "max_length": 5, "max_rows": 8, "window": 2},
    ),
    "Translator.score": (
        TOY.score,
        {"texts": ["danke"], "translations": ["thanks"], "max_rows": 8},
    ),
    "too_long": (TOY.too_long, {"texts": ["danke"]}),
    "transcribe": (
        Transcriber(**SOUNDS).transcribe,
        {"sources": [torch.ones(30)], "decoder": Greedy(), "max_length": 3, "max_rows": 4},
    ),
    "check_model": (
        npad.testing.check_model,
        {"model": TABLE, "source": [0, 0], "tolerance": 1e-3},
    ),
    "calibrate": (
        calibrated,
        {
            "translator": TOY,
            "max_length": 5,
            "max_rows": 64,
            "sources": ["danke", "na ja"],
            "references": ["thanks", "oh well"],
            "progress": nothing,
            "budget": 50,
            "unit": "calls",
            "metric": "chrf",
            "check_all": True,
            "seed": 1,
            "first_rung": 1,
        },
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_gets_one_line(name):
    assert list(faults(name, *CALLS[name])) == []


def test_there_are_thousands_of_calls():
    valid_calls = CONSTRUCTORS | CALLS
    counts = [len(list(wrong_calls(name, valid))) for name, (_, valid) in valid_calls.items()]
    assert sum(counts) >= 3000


@pytest.mark.parametrize("argument", ["name", "device", "language"])
def test_a_wrong_speech_model_gets_one_line(argument):
    """No speech model comes along: what is right here is refused as well, for want of a folder."""
    for value in pool():
        with pytest.raises(InvalidInput) as caught:
            load_as(Transcriber, **({"name": "hf:nowhere/at/all"} | {argument: value}))
        assert "\n" not in str(caught.value)
