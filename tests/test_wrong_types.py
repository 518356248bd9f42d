"""Every public constructor and function with arguments of wrong types works, or says why not.

In a valid call, one argument at a time is replaced by every value of a pool, then random pairs.
"""

from __future__ import annotations

import math
import random
from fractions import Fraction
from functools import partial
from itertools import count, islice

import numpy as np
import pytest
import torch

import npad
from cases import best
from npad import (
    MBR,
    NPAD,
    Adaptive,
    Annealed,
    Antithetic,
    Beam,
    BestOf,
    ContractError,
    Cosine,
    Counted,
    Diverse,
    Exact,
    Exponential,
    Fallback,
    FirstSteps,
    Fixed,
    Gaussian,
    GNMTLength,
    Greedy,
    Hypothesis,
    InvalidInput,
    Laplace,
    LengthNormalised,
    Linear,
    MBRDecoding,
    MostProbable,
    Noise,
    Noisy,
    NpadError,
    Orthogonal,
    Power,
    Rerank,
    Sampling,
    Special,
    StudentT,
    Translation,
    Translator,
    Uniform,
    decode,
    score,
    signature,
)
from npad.experiments.calibration.calibrate import Options, Pairs, calibrate
from npad.experiments.calibration.decoder_space import Candidate
from npad.experiments.calibration.decoding_tasks import Translating
from npad.models.cgru.model import AttentionModel
from npad.models.recurrent import RecurrentLM
from npad.models.table import TableModel
from npad.pipelines.transcription import Transcriber
from npad.pipelines.transcription import load as load_transcriber
from npad.training import run
from npad.training.prepare import prepare
from npad.training.recipe import Recipe
from runs import TINY, small_store

PAIRS = 12  # random pairs of wrong arguments for every call
TABLE = TableModel.random(3, 3, seed=5)
TOY = npad.load("toy")
HYPOTHESIS = Hypothesis((1,), -1.0, True)


class Unshowable:
    """A value whose repr fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def nothing(*arguments):
    return None


def calibrated(translator, max_length, max_rows, sources, references, progress, **options):
    """Calibrate between two decoders."""
    candidates = [Candidate(f"beam {w}", "beam", Beam(w), "beam") for w in (1, 2)]
    task = Translating(translator, max_length, max_rows)
    pairs = Pairs.checked(sources, references)
    return calibrate(task, pairs, Options(**options), None, candidates, progress=progress)


def pool():
    """Values of many types, made anew, since an iterator is used up."""
    sound = [True, False, None, -1, 0, 1, 1.5, np.int64(3), np.float32(0.5), np.bool_(True)]
    numbers = [
        math.nan,
        math.inf,
        -math.inf,
        1e300,
        2**40,
        2**63,
        2**64,
        2**200,
        -(2**63) - 1,
        10**5000,
        -(10**400),
    ]
    numbers += [1j, Fraction(1, 2), np.float64("nan"), np.uint64(2**63)]
    texts = ["x", "", "a\nb", "\ud800", "\0", b"x", np.array(["x", "y"])]
    collections = [[], {}, (), [[1]], [[[1]]], [None], ["x"], range(2), iter("ab"), slice(3)]
    objects = [object(), Unshowable(), Beam, Greedy(), nothing]
    tensors = [torch.tensor(0.5), torch.zeros(2, 3), torch.zeros(0), np.zeros((2, 2))]
    return sound + numbers + texts + collections + objects + tensors


def used(make):
    """A constructor whose result is then decoded with: a mistake may not hide until then."""

    def call(**arguments):
        return TRIED[make](make(**arguments))

    return call


def with_decoder(decoder):
    return best(TABLE, decoder, max_length=3)


def with_noise(noise):
    return with_decoder(NPAD(Greedy(), 2, noise))


def with_schedule(schedule):
    return with_noise(Noise(0.3, schedule))


def with_distribution(distribution):
    return with_noise(Noise(0.3, distribution=distribution, relative=distribution.relative_only))


def with_selector(selector):
    return with_decoder(NPAD(Sampling(3), 2, selector=selector))


class Blind:
    """A model that ignores the tokens it reads, so that any begin token will do."""

    def __init__(self, special):
        self.special, self.sites = special, {}

    def start(self, source):
        return torch.zeros(len(source))

    def step(self, state, tokens, perturb=None):
        return torch.zeros(len(tokens), 3), state

    def select(self, state, rows):
        return state[rows]


def with_special(special):
    return best(Blind(special), Beam(2), max_length=3)


def with_translator(translator):
    scores = translator.score(["danke"], ["thanks"])
    return translator.translate(["danke", "na ja"], Beam(2), 5), scores


def with_transcriber(transcriber):
    return transcriber.transcribe([torch.ones(40)], Greedy(), 5)


DECODERS = {
    NPAD: {
        "inner": Beam(2),
        "chains": 2,
        "noise": Noise(0.3),
        "clean_chain": True,
        "seed": 1,
        "selector": MostProbable(),
        "candidates": "best",
        "share_noise": False,
    },
    Beam: {"width": 3, "finish": "shrink", "nbest": 2},
    Sampling: {"samples": 3, "temperature": 0.7, "top_k": 2, "top_p": 0.9, "seed": 1},
    Diverse: {"width": 3, "eta": 0.1, "nbest": 2},
    Exact: {"budget": 50, "beam": Beam(2)},
    BestOf: {"decoders": (Greedy(), Beam(2))},
    MBRDecoding: {"inner": Beam(2), "pseudo_references": Sampling(2), "selector": MBR()},
    Fallback: {
        "first": Greedy(),
        "samples": 2,
        "temperatures": (0.5, 1.0),
        "min_log_prob": -0.1,
        "max_compression": 2.0,
        "seed": 1,
        "text": str,
    },
}
NOISES = {
    Noise: {
        "sigma": 0.3,
        "schedule": Annealed(),
        "distribution": Gaussian(),
        "site": "hidden",
        "relative": False,
    }
}
SCHEDULES = {
    Power: {"p": 0.5},
    Linear: {"steps": 3},
    Cosine: {"steps": 3},
    Exponential: {"decay": 0.5},
    FirstSteps: {"n": 2},
    Adaptive: {"power": 1.0},
}
DISTRIBUTIONS = {
    StudentT: {"nu": 5.0},
    Fixed: {"base": Laplace()},
    Antithetic: {"base": Uniform()},
    Orthogonal: {"block": 4},
}
SELECTORS = {
    LengthNormalised: {"alpha": 1.0},
    GNMTLength: {"alpha": 0.6, "beta": 0.0},
    MBR: {"utility": lambda one, other: 1.0, "text": str},
    Rerank: {"key": lambda one: 0.5},
}
TEXTS = {
    "model": TOY.model,
    "encode": list,
    "detokenise": TOY.detokenise,
    "tokenise": TOY.tokenise,
    "longest": 50,
}
SOUNDS = {
    "model": TABLE,
    "hear": lambda sounds: [0] * len(sounds),
    "detokenise": str,
    "rate": 10,
    "longest": 2.0,
}
TRIED = {
    **dict.fromkeys(DECODERS, with_decoder),
    **dict.fromkeys(NOISES, with_noise),
    **dict.fromkeys(SCHEDULES, with_schedule),
    **dict.fromkeys(DISTRIBUTIONS, with_distribution),
    **dict.fromkeys(SELECTORS, with_selector),
    Special: with_special,
    Translator: with_translator,
    Transcriber: with_transcriber,
    Noisy: lambda model: best(model, Greedy()),
    Counted: lambda model: best(model, Greedy()),
    **dict.fromkeys((Hypothesis, Translation), lambda result: result),
}
CONSTRUCTED = {
    **DECODERS,
    **NOISES,
    **SCHEDULES,
    **DISTRIBUTIONS,
    **SELECTORS,
    Special: {"bos": 3, "eos": 0, "pad": 3},
    Hypothesis: {"tokens": (1,), "log_prob": -1.0, "finished": True, "chain": 0},
    Translation: {
        "text": "x",
        "log_prob": -1.0,
        "hypothesis": HYPOTHESIS,
        "signature": "",
        "alternatives": (),
    },
    Noisy: {"model": TABLE, "noise": Noise(0.3), "seed": 1, "share_noise": False},
    Counted: {"model": TABLE},
    Translator: TEXTS,
    Transcriber: SOUNDS,
}


def on_meta(kind):
    """A model's constructor, without memory for its weights."""

    def call(**arguments):
        with torch.device("meta"):
            return kind(**arguments)

    return call


def streamed(**arguments):
    return list(islice(TOY.stream(**arguments), 3))


TABLES = {0: {(): [0.5, 0.5]}}
CALLS = {kind.__name__: (used(kind), valid) for kind, valid in CONSTRUCTED.items()}
CALLS |= {
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
        {"texts": ["danke"], "decoder": Beam(2), "max_length": 5, "max_rows": 8},
    ),
    "stream": (
        streamed,
        {"texts": ["danke"], "decoder": Beam(2), "max_length": 5, "max_rows": 8, "window": 2},
    ),
    "Translator.score": (
        TOY.score,
        {"texts": ["danke"], "translations": ["thanks"], "max_rows": 8},
    ),
    "too_long": (TOY.too_long, {"texts": ["danke"]}),
    "transcribe": (
        Transcriber(**SOUNDS).transcribe,
        {"recordings": [torch.ones(30)], "decoder": Greedy(), "max_length": 3, "max_rows": 4},
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
    "TableModel": (
        lambda **given: best(TableModel(**given), Greedy()),
        {"tables": TABLES, "eos": 0, "dtype": torch.float32, "name": "table"},
    ),
    "TableModel.random": (
        TableModel.random,
        {"vocabulary": 3, "depth": 2, "seed": 1, "sentences": 1, "dtype": torch.float32},
    ),
    "AttentionModel": (
        on_meta(AttentionModel),
        {
            "source_vocabulary": 5,
            "target_vocabulary": 6,
            "units": 8,
            "embedding": 4,
            "cell": "gru",
            "layers": 1,
            "attention": True,
            "dropout": 0.1,
            "initialisation": "glorot",
            "tied": False,
            "eos": 0,
        },
    ),
    "RecurrentLM": (
        on_meta(RecurrentLM),
        {
            "vocabulary": 5,
            "embedding": 4,
            "hidden": 8,
            "cell": "gru",
            "layers": 1,
            "summary": 2,
            "condition": ("input",),
            "special": Special(0, 1, 0),
        },
    ),
    "Recipe": (
        lambda **given: Recipe.from_json(Recipe(**given).to_json()),
        {
            "optimiser": "adam",
            "learning_rate": 0.1,
            "decay": 0.5,
            "anneal": False,
            "clip": 1.0,
            "batch": 64,
            "epochs": 2,
            "updates": 3,
            "patience": 2,
            "validate": 5,
            "checkpoint": 7,
            "precision": "float32",
            "seed": 1,
            "noise": Noise(0.3),
        },
    ),
}


def wrong_calls(name, valid):
    """One argument wrong at a time, and then random pairs of them."""
    for argument in valid:
        for value in pool():
            yield valid | {argument: value}
    draw = random.Random(name)
    for _ in range(PAIRS if len(valid) > 1 else 0):
        yield valid | {argument: draw.choice(pool()) for argument in draw.sample(sorted(valid), 2)}


def fault(call, arguments) -> str | None:
    """What is wrong with the answer to a call, if anything."""
    try:
        call(**arguments)
    except ContractError:
        return None
    except NpadError as error:
        return f"several lines: {error}" if "\n" in str(error) or len(str(error)) > 600 else None
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:100]}"
    return None


def described(value) -> str:
    try:
        return repr(value)[:40]
    except (RuntimeError, ValueError):
        return type(value).__name__


def faults(name, call, valid, fresh=dict):
    """The calls that are answered by something else than a result or one line."""
    call(**valid, **fresh())
    for arguments in wrong_calls(name, valid):
        found = fault(call, fresh() | arguments)
        if found is not None:
            changed = {
                key: described(value) for key, value in arguments.items() if value is not valid[key]
            }
            yield f"{name}({changed}): {found}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_gets_one_line(name):
    assert list(faults(name, *CALLS[name])) == []


def test_there_are_thousands_of_calls():
    assert sum(1 for name, (_, valid) in CALLS.items() for _ in wrong_calls(name, valid)) >= 3000


@pytest.mark.parametrize("argument", ["name", "device", "language"])
def test_a_wrong_speech_model_gets_one_line(argument):
    """No speech model comes along: what is right here is refused as well, for want of a folder."""
    for value in pool():
        with pytest.raises(InvalidInput) as caught:
            load_transcriber(**({"name": "hf:nowhere/at/all"} | {argument: value}))
        assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore")
def test_preparing_with_a_wrong_argument_gets_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_text("one two\nthree\n")
    (tmp_path / "b").write_text("eins zwei\ndrei\n")
    new = count()
    valid = {
        "train": ("a", "b"),
        "valid": ("a", "b"),
        "vocabulary": (300, 300),
        "joint": False,
        "tokenizers": None,
        "max_length": 9,
        "sample": 5,
        "progress": nothing,
    }
    assert (
        list(faults("prepare", prepare, valid, lambda: {"folder": tmp_path / f"store-{next(new)}"}))
        == []
    )
    for value in pool():
        assert fault(prepare, valid | {"folder": value}) is None


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return small_store(tmp_path_factory.mktemp("wrong"), 20, 4).folder


@pytest.mark.filterwarnings("ignore")
def test_training_with_a_wrong_argument_gets_one_line(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        run, "AttentionModel", partial(AttentionModel, **TINY)
    )  # where options are left out
    new = count()
    valid = {
        "data": store,
        "options": TINY,
        "recipe": Recipe(updates=1),
        "device": "cpu",
        "watch": None,
    }
    assert (
        list(faults("train", run.train, valid, lambda: {"folder": tmp_path / f"run-{next(new)}"}))
        == []
    )
    for value in pool():
        assert fault(run.train, valid | {"folder": value}) is None


@pytest.mark.filterwarnings("ignore")
def test_resuming_with_a_wrong_argument_gets_one_line(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run.train(tmp_path / "run", store, TINY, Recipe(updates=1))
    valid = {
        "folder": tmp_path / "run",
        "device": "cpu",
        "watch": None,
        "epochs": 1,
        "updates": 1,
        "patience": 1,
    }
    assert list(faults("resume", run.resume, valid)) == []
