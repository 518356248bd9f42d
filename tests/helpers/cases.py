"""Shared by the tests: every decoder, small models of known distribution, and comparisons."""

from __future__ import annotations

import math
import warnings
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st

from npad import (
    NPAD,
    Arithmetic,
    Beam,
    BestOf,
    Decoder,
    Diverse,
    Exact,
    Fallback,
    Greedy,
    Hypothesis,
    MBRDecoding,
    Noise,
    Sampling,
    SharedSampling,
    SteeredSearch,
    StochasticBeam,
    Translator,
    count_calls,
    decode,
    score,
)
from npad.cli.decoder_options import flag_of
from npad.errors import MemoryWarning
from npad.models.low_precision import LowPrecision
from npad.models.recurrent import RecurrentLM
from npad.models.table import TableModel
from npad.search.registry import DECODERS
from npad.search.request import decoding_from
from npad.search.sampling import Epsilon

PLAIN = {
    "greedy": Greedy(),
    "sampling": Sampling(4, seed=3),
    "tempered": Sampling(3, temperature=0.5, top_k=3, top_p=0.9),
    "shrink": Beam(3, "shrink"),
    "compete": Beam(3, "compete"),
    "pool": Beam(3, "pool"),
    "nbest": Beam(4, "shrink", nbest=3),
    "wide": Beam(12),
    "epsilon": Epsilon(3, epsilon=0.1, seed=4),
    "shared": SharedSampling(4, temperature=0.5, seed=3),
    "arithmetic": Arithmetic(4, seed=3),
    "stochastic": StochasticBeam(3, seed=3),
    "diverse": Diverse(3, eta=0.3),
    "best-of": BestOf((Greedy(), Sampling(3, temperature=0.5), Beam(2))),
    "exact": Exact(300),  # enough for all outputs of a table
    "tight": Exact(8, Beam(1)),
    "fallback": Fallback(samples=3),
}
# Draw other numbers in every chain, even without noise.
RANDOM = (Sampling, BestOf, StochasticBeam, Fallback)
# A registered decoder without a case of its own inherits the theorems at its default.
# The steered search needs a model with an actor, and MBR does not rank by log-probability:
# tests/models/test_steered.py, tests/search/test_mbr_decoding.py.
COVERED = {NPAD, SteeredSearch, MBRDecoding, *map(type, PLAIN.values())}
PLAIN |= {name: kind() for name, kind in DECODERS.kinds.items() if kind not in COVERED}


def npad(inner, **changes):
    return NPAD(inner, **({"chains": 5, "noise": Noise(0.4)} | changes))


NOISY = {f"npad-{name}": npad(inner) for name, inner in PLAIN.items()}
NOISY |= {
    "npad-all": npad(Beam(3), candidates="all"),
    "npad-shared": npad(Beam(3), share_noise=True),
    "npad-unclean": npad(Greedy(), clean_chain=False),
}
EVERY = PLAIN | NOISY
# A decoder of each way to search: one row or more, with a frontier or a tree, with noise.
WAYS = ["greedy", "tempered", "nbest", "stochastic", "tight"]
WAYS += ["npad-greedy", "npad-sampling", "npad-nbest"]


def by_name(cases):
    """Arguments for pytest.mark.parametrize: each case under its name."""
    return {"argvalues": cases.values(), "ids": cases.keys()}


def with_decoders(name, cases, fully):
    """Parameters `decoder` and `name`: every decoder with the cases `fully`, WAYS with the others.

    What a case changes, it changes in the model, which does not know who searches.
    """
    chosen = [(case, way) for case in cases for way in (EVERY if case in fully else WAYS)]
    params = [pytest.param(EVERY[way], cases[case], id=f"{way}-{case}") for case, way in chosen]
    return pytest.mark.parametrize(("decoder", name), params)


def counted(function, *arguments, **options):
    """What a call returns, and the model calls that it takes."""
    with count_calls() as calls:
        return function(*arguments, **options), calls


def make_decoder(name, settings, defaults=None) -> Decoder:
    """The decoder that --decoder and other options of the command line describe."""
    options = {**settings, "decoder": name}
    return decoding_from(options, defaults, spell=flag_of).decoder


def key(hypothesis: Hypothesis) -> tuple[bool, float]:
    """The order of hypotheses."""
    return hypothesis.finished, hypothesis.log_prob


def tokens(found: list[list[Hypothesis]]) -> list[list[tuple[int, ...]]]:
    return [[hypothesis.tokens for hypothesis in hypotheses] for hypotheses in found]


def assert_same(actual: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    """The same tokens, chains and ends; log-probabilities to the last digits of float64."""
    assert tokens(actual) == tokens(expected)
    for a, b in zip(chain(*actual), chain(*expected), strict=True):
        assert (a.finished, a.chain, a.proven) == (b.finished, b.chain, b.proven)
        assert math.isclose(a.log_prob, b.log_prob, abs_tol=1e-9)
        assert (a.noisy_log_prob is None) == (b.noisy_log_prob is None)
        if a.noisy_log_prob is not None:
            assert math.isclose(a.noisy_log_prob, b.noisy_log_prob, abs_tol=1e-9)


def assert_lower_precision(model, source, precision, inner, tolerance=1e-4) -> None:
    """Only noisy chains are in lower precision, and the model itself scores what they find."""
    low, plain = LowPrecision(model, precision), decode(model, source, inner, 8)
    assert decode(low, source, inner, 8) == plain
    nbest_lists = decode(low, source, NPAD(inner, 6, Noise(0.7)), 8)
    for nbest, (best, *others) in zip(nbest_lists, plain, strict=True):
        assert key(nbest[0]) >= (best.finished, best.log_prob - 1e-4)
        clean = {hypothesis.tokens for hypothesis in nbest if hypothesis.chain == 0}
        assert clean == {hypothesis.tokens for hypothesis in (best, *others)}
    assert_clean_scores(model, source, nbest_lists, tolerance)


def assert_clean_scores(model, source, nbest_lists, tolerance=1e-9) -> None:
    """Finished hypotheses have the model's own log-probabilities."""
    ended = [[h for h in nbest if h.finished] for nbest in nbest_lists]
    expected = score(model, source, [[h.tokens for h in nbest] for nbest in ended])
    for nbest, scores in zip(ended, expected, strict=True):
        assert [h.log_prob for h in nbest] == pytest.approx(scores, abs=tolerance)


@torch.no_grad()
def read_by_hand(model, state, tokens) -> float:
    """log p of tokens and the end, token by token, from a state that may be another model's."""
    total = 0.0
    for read, predicted in zip(
        [model.special.bos, *tokens], [*tokens, model.special.eos], strict=True
    ):
        logits, state = model.step(state, torch.tensor([read]))
        total += logits[0].double().log_softmax(-1)[predicted].item()
    return total


@contextmanager
def one_warning():
    """Require one MemoryWarning, under Python's default filter."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        yield
    assert [warning.category for warning in caught] == [MemoryWarning]


class Stateless:
    """A model whose logits are a function of the tokens that it reads last."""

    def __init__(self, special, logits):
        self.special, self.sites, self.logits = special, {}, logits

    def start(self, source):
        return torch.zeros(len(source))

    def step(self, state, tokens, perturb=None):
        return self.logits(tokens), state

    def select(self, state, rows):
        return state[rows]


def watched(model, note):
    """The model, which calls note(state, tokens, perturb) before every step."""
    step = model.step

    def noted_step(state, tokens, perturb=None):
        note(state, tokens, perturb)
        return step(state, tokens, perturb)

    model.step = noted_step
    return model


CUDA_OUT_OF_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB.")


class Small:
    """A model that runs out of memory above `rows` rows."""

    def __init__(self, model, rows, starts=10**9, error=CUDA_OUT_OF_MEMORY):
        self.model, self.rows, self.starts, self.error = model, rows, starts, error
        self.special, self.sites, self.select = model.special, model.sites, model.select
        self.seen = []

    def start(self, source):
        if len(source) > self.starts:
            raise self.error
        return self.model.start(source)

    def step(self, state, tokens, perturb=None):
        self.seen.append(len(tokens))
        if len(tokens) > self.rows:
            raise self.error
        return self.model.step(state, tokens, perturb)


def counting_tokeniser(translator: Translator) -> tuple[Translator, list[str]]:
    """A translator, and the list to which it adds every text that it tokenises."""
    read: list[str] = []

    def encode(texts):
        read.extend(texts)
        return translator.encode(texts)

    return replace(translator, encode=encode), read


# For theorems over many decoders: with four tables in an example, as many tables as without.
in_fours = settings(max_examples=settings().max_examples // 4)
FOUR = [0, 1, 2, 3]  # the sources of `tables(sentences=4)`


@st.composite
def tables(draw, max_vocabulary=4, max_depth=4, sentences=1, zeros=True):
    """Random tables, some tokens impossible, in float64."""
    vocabulary, depth = draw(st.integers(2, max_vocabulary)), draw(st.integers(1, max_depth))
    seed = draw(st.integers(0, 2**32))
    model = TableModel.random(vocabulary, depth, seed, sentences, torch.float64)
    if zeros and draw(st.booleans()):
        model = with_zeros(model, seed)
    return model


def with_zeros(model: TableModel, seed: int) -> TableModel:
    """The same tables with about a third of the tokens made impossible."""
    generator = torch.Generator().manual_seed(seed % 2**31)
    changed = {}
    for sentence, table in model.tables.items():
        changed[sentence] = {}
        for history, row in table.items():
            whole = torch.tensor(row, dtype=torch.float64)
            p = whole * (torch.rand(len(row), generator=generator) > 0.35)
            p = p if p.sum() > 0 else whole
            changed[sentence][history] = (p / p.sum()).tolist()
    return TableModel(changed, dtype=torch.float64)


def recurrent(
    cell="gru",
    dtype=torch.float64,
    layers=1,
    summary=4,
    vocabulary=9,
    seed=0,
    scale=4.0,
    ends=0.0,
    **more,
) -> RecurrentLM:
    """A small untrained model, its weights enlarged so that its distribution is not flat.

    ends: what is added to the logit of the end token, so that outputs end sooner.
    """
    torch.manual_seed(seed)
    model = RecurrentLM(vocabulary, 6, 8, cell, layers, summary, **more).to(dtype).eval()
    with torch.no_grad():
        model.logits.weight.mul_(scale)
        model.logits.bias[model.special.eos] += ends
    return model


def summaries(sentences: int, dtype=torch.float64, width=4, seed=1) -> torch.Tensor:
    return torch.randn(sentences, width, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def p_value(observed: list[int], expected: list[float]) -> float:
    """The chance of a chi-square as large as this one, if the expectation is true."""
    pairs = list(zip(observed, expected, strict=True))
    statistic = sum((o - e) ** 2 / e for o, e in pairs)
    freedom = torch.tensor((len(pairs) - 1) / 2, dtype=torch.float64)
    return torch.special.gammaincc(freedom, torch.tensor(statistic / 2, dtype=torch.float64)).item()


def assert_drawn(drawn, truth: dict, draws: int) -> None:
    """Require counts of outputs that their probabilities make likely; the rare ones as one."""
    common = [tokens for tokens, p in truth.items() if p * draws > 8]
    observed, expected = [drawn[t] for t in common], [truth[t] * draws for t in common]
    assert p_value([*observed, draws - sum(observed)], [*expected, draws - sum(expected)]) > 1e-3


def best(model, decoder, source=(0,), max_length=8, **more) -> Hypothesis:
    return decode(model, list(source), decoder, max_length, **more)[0][0]
