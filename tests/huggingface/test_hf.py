"""Hugging Face models in `npad.hf.generate`."""

from __future__ import annotations

import pytest
import torch

from hf_cases import PROMPTS, V, build, kinds, source, tensors
from npad import NPAD, Greedy, Noise, decode, hf
from npad.models.huggingface.adapter import HuggingFace
from wrong_types import assert_wrong_arguments_are_refused

NOISY = NPAD(Greedy(), 8, Noise(0.5, relative=True))


@kinds
@pytest.mark.filterwarnings("ignore:num_return_sequences is 3, but the search found only")
def test_generate_gives_what_decode_finds_as_generate_gives_it(kind):
    model = build(kind)
    found = hf.generate(
        model, **tensors(kind), decoder=NOISY, num_return_sequences=3, max_new_tokens=10
    )
    expected = decode(HuggingFace(model), source(kind), NOISY, 10)
    prefix, eos = 1 if model.config.is_encoder_decoder else 5, model.generation_config.eos_token_id
    for i, hypotheses in enumerate(expected):
        for j in range(3):
            row, hypothesis = 3 * i + j, hypotheses[min(j, len(hypotheses) - 1)]
            tokens = [*hypothesis.tokens, *([eos] if hypothesis.finished else [])]
            assert found.sequences[row, prefix : prefix + len(tokens)].tolist() == tokens
            assert found.sequences_scores[row].item() == pytest.approx(hypothesis.log_prob)
            assert found.noisy_scores[row].item() == pytest.approx(hypothesis.noisy_log_prob)
            assert found.chains[row].item() == hypothesis.chain
            assert found.finished[row].item() == hypothesis.finished
        assert found.clean_won[i].item() == (hypotheses[0].chain == 0)
    assert found.sequences.shape[0] == 12
    assert "npad|inner:greedy|chains:8|" in found.signature


def test_lengths_are_those_asked_for_or_configured():
    model, given = build("llama"), tensors("llama")

    def new_tokens(**options):
        sequences = hf.generate(model, **given, decoder=Greedy(), **options).sequences
        return sequences.shape[1] - given["input_ids"].shape[1]

    with pytest.warns(UserWarning, match="Using the model-agnostic default"):
        assert new_tokens() <= 20
    assert new_tokens(max_length=8) <= 3
    model.generation_config.max_new_tokens = 3
    assert new_tokens() <= 3
    assert new_tokens(max_new_tokens=1) == 1


def test_several_end_tokens_count_as_one():
    model = build("llama")
    model.generation_config.eos_token_id = [2, 7, 9]
    adapter = HuggingFace(model)
    state = adapter.start(PROMPTS)
    plain = HuggingFace(build("llama"))
    first = torch.full((4,), V)
    with torch.no_grad():
        merged, own = adapter.step(state, first)[0], plain.step(plain.start(PROMPTS), first)[0]
    p, q = merged.softmax(-1), own.softmax(-1)
    torch.testing.assert_close(p[:, 2], q[:, [2, 7, 9]].sum(-1))
    assert (p[:, [7, 9]] == 0).all()
    torch.testing.assert_close(p.sum(-1), torch.ones(4, dtype=torch.float64))


@pytest.mark.filterwarnings("ignore")
def test_generate_with_a_wrong_argument_gets_one_line():
    prompt = torch.tensor([[5, 6, 7]])
    valid = {"model": build("llama"), "persist": True, "decoder": Greedy(), "ids": [1]}
    valid |= {"num_return_sequences": 1, "max_new_tokens": 3, "max_rows": 4}
    valid |= {"input_ids": prompt, "attention_mask": torch.ones_like(prompt)}
    assert_wrong_arguments_are_refused(lambda model, **rest: hf.generate(model, **rest), valid)
