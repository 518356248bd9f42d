"""Recurrent language models against the equations, and against the contract."""

from __future__ import annotations

import itertools

import pytest
import torch

from cases import recurrent, summaries
from npad import InvalidInput
from npad.models.recurrent import PLACES, RecurrentLM
from npad.testing import check_model

VARIANTS = [places for n in range(4) for places in itertools.combinations(PLACES, n)]


def by_hand(model, cell, source, tokens):
    """The equations of the paper's section 2, from the weights: logits of every step."""
    weight = dict(model.named_parameters())
    f = source
    layers = model.layers
    h = [torch.zeros(len(tokens), model.hidden, dtype=torch.float64) for _ in range(layers)]
    if "initial" in model.condition:
        flat = torch.tanh(f @ weight["initial.weight"].T + weight["initial.bias"])
        h = list(flat.view(len(tokens), layers, -1).unbind(1))
    c = [torch.zeros_like(x) for x in h]
    out = []
    for t in range(tokens.shape[1]):
        x = weight["embedding.weight"][tokens[:, t]]
        if "input" in model.condition:
            x = torch.cat([x, f], 1)
        for layer in range(layers):
            cells = f"cells.{layer}."
            a = x @ weight[cells + "weight_ih"].T + weight[cells + "bias_ih"]
            b = h[layer] @ weight[cells + "weight_hh"].T + weight[cells + "bias_hh"]
            if cell == "rnn":
                h[layer] = torch.tanh(a + b)
            elif cell == "gru":
                (ar, az, an), (br, bz, bn) = a.chunk(3, 1), b.chunk(3, 1)
                z = torch.sigmoid(az + bz)
                h[layer] = (1 - z) * torch.tanh(an + torch.sigmoid(ar + br) * bn) + z * h[layer]
            else:
                i, g, n, o = (a + b).chunk(4, 1)
                c[layer] = torch.sigmoid(g) * c[layer] + torch.sigmoid(i) * torch.tanh(n)
                h[layer] = torch.sigmoid(o) * torch.tanh(c[layer])
            x = h[layer]
        if "output" in model.condition:
            x = torch.cat([x, f], 1)
        x = torch.tanh(x @ weight["readout.weight"].T + weight["readout.bias"])
        out.append(x @ weight["logits.weight"].T + weight["logits.bias"])
    return torch.stack(out, 1)


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("condition", VARIANTS, ids=lambda places: "+".join(places) or "nowhere")
def test_recurrent_model_equals_the_papers_equations(cell, layers, condition):
    model, source = recurrent(cell, layers=layers, condition=condition), summaries(3)
    tokens = torch.randint(2, 9, (3, 6), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = by_hand(model, cell, source, tokens)
        forced = model.forced(model.start(source), tokens)
        state, stepped = model.start(source), []
        for t in range(6):
            logits, state = model.step(state, tokens[:, t])
            stepped.append(logits)
        for logits in (forced, torch.stack(stepped, 1)):
            torch.testing.assert_close(logits, expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("summary", [0, 4])
def test_recurrent_model_keeps_the_contract(cell, layers, summary, dtype):
    model = recurrent(cell, dtype, layers=layers, summary=summary)
    check_model(model, summaries(3, dtype) if summary else range(3))


def test_the_summary_is_kept_once_per_sentence():
    model = recurrent()
    state = model.select(model.start(summaries(3)), torch.arange(3).repeat_interleave(50))
    assert state.hidden.shape[1] == 150
    assert state.summary.shape[0] == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cell": "tanh"}, "cell must be one of 'rnn', 'gru', 'lstm', not 'tanh'"),
        ({"layers": 0}, "layers must be a whole number of at least 1, not 0"),
        ({"condition": ("state",)}, "condition must be one of 'initial', 'input', 'output', not"),
        ({"vocabulary": 1}, "bos and eos must be among the 1 tokens"),
    ],
)
def test_wrong_sizes_are_named(change, message):
    with pytest.raises(InvalidInput, match=message):
        RecurrentLM(**({"vocabulary": 9, "summary": 4} | change))


@pytest.mark.parametrize(
    "source", [torch.zeros(2, 5), torch.zeros(4), [1, 2]], ids=["width", "flat", "list"]
)
def test_a_source_of_the_wrong_shape_is_named(source):
    with pytest.raises(
        InvalidInput, match=r"the source must be a tensor \[sentences, 4\] of summaries"
    ):
        recurrent().start(source)
