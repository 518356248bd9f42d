"""`generate` of Hugging Face itself, with npad.hf.npad as its `custom_generate`."""

from __future__ import annotations

import pytest
import torch

from hf_cases import CONFIGS, build, tensors
from npad import InvalidInput, hf

OWN_GENERATE = pytest.mark.parametrize("kind", [kind for kind in CONFIGS if kind != "whisper"])


def trimmed(sequences, prefix, model):
    """Cut the sequences at the end token, which generate's beams repeat."""
    eos = model.generation_config.eos_token_id
    rows = [row[prefix:] for row in sequences.tolist()]
    return [row[: row.index(eos)] if eos in row else row for row in rows]


@OWN_GENERATE
@pytest.mark.filterwarnings("ignore:num_return_sequences is 3, but the search found only")
def test_with_noise_it_finds_more_probable_sequences_that_obey(kind):
    model, given = build(kind), tensors(kind)
    how = {"max_new_tokens": 8, "do_sample": False, "suppress_tokens": [4, 5]}
    how |= {"num_beams": 3, "num_return_sequences": 3}
    how |= {"custom_generate": hf.npad, "return_dict_in_generate": True}
    plain = model.generate(**given, **how, npad_sigma=0.0, npad_chains=1)
    found = model.generate(**given, **how, npad_sigma=0.6, npad_chains=12)
    prefix = 1 if model.config.is_encoder_decoder else given["input_ids"].shape[1]
    assert found.sequences.shape[0] == plain.sequences.shape[0] == 12
    assert not bool(torch.isin(found.sequences[:, prefix:], torch.tensor([4, 5])).any())
    eos = model.generation_config.eos_token_id
    ends = [(one.sequences[::3, prefix:] == eos).any(1) for one in (plain, found)]
    better = (ends[1] > ends[0]) | (
        found.sequences_scores[::3] >= plain.sequences_scores[::3] - 1e-6
    )
    assert bool(better.all())
    texts = [tuple(row) for row in trimmed(found.sequences, prefix, model)[:3]]
    assert len(set(texts)) == 3


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"do_sample": True}, "do_sample does not go with npad.hf.npad"),
        ({"max_time": 3.0}, "max_time does not go with a search"),
        ({"guidance_scale": 2.0}, "guidance_scale does not go with a search"),
        ({"output_logits": True}, "output_logits does not go with npad.hf.npad"),
        ({"npad_site": "layer"}, "no noise site 'layer'; it offers 'hidden'"),
    ],
    ids=["sampling", "time", "guidance", "logits", "site"],
)
def test_unsupported_options_are_refused(how, message):
    model, given = build("llama"), tensors("llama")
    with pytest.raises(InvalidInput, match=message):
        model.generate(
            **given, **({"do_sample": False, "max_new_tokens": 3} | how), custom_generate=hf.npad
        )


def test_a_caller_may_name_its_variables_as_it_likes():
    """No check reads the frame of the caller, which may have a local variable `streamer`."""
    model, given = build("llama"), tensors("llama")
    how = {"do_sample": False, "max_new_tokens": 3}

    def wrapper(*args, streamer="a local variable", assistant_model="another", **kwargs):
        return hf.npad(*args, **kwargs)

    expected = model.generate(**given, **how, custom_generate=hf.npad)
    assert torch.equal(model.generate(**given, **how, custom_generate=wrapper), expected)
