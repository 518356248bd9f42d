"""The custom_generate recipe in examples/, loaded by transformers from its folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from transformers import StoppingCriteriaList, TextStreamer

from hf_cases import beams, build, tensors
from npad import Greedy, InvalidInput, hf

RECIPE = Path(__file__).parent.parent.parent / "examples" / "recipe"
CALL = {"do_sample": False, "max_new_tokens": 8}


@pytest.fixture(autouse=True)
def recipe(tmp_path, monkeypatch):
    """How `generate` is asked for the recipe, whose code it copies to a cache of modules."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    return {"custom_generate": str(RECIPE), "trust_remote_code": True}


@pytest.mark.parametrize("kind", ["marian", "t5", "bart", "llama", "gpt2"])
@pytest.mark.parametrize("width", [1, 3])
def test_it_does_what_npad_does_inside_generate(kind, width, recipe):
    model, given = build(kind), tensors(kind)
    noise = {"npad_sigma": 0.5, "npad_chains": 6, "npad_seed": 3}
    how = CALL | beams(width) | noise
    expected = model.generate(**given, **how, custom_generate=hf.npad)
    assert torch.equal(model.generate(**given, **how, **recipe), expected)


def test_it_takes_what_generate_keeps_from_functions(recipe):
    class Tokenizer:
        def decode(self, tokens, **options):
            return "".join(f"w{token} " for token in tokens)

    model, given = build("llama"), {"input_ids": torch.tensor([[5, 6, 7]])}
    given["attention_mask"] = torch.ones_like(given["input_ids"])
    shown = []

    class Shown(TextStreamer):
        def on_finalized_text(self, text, stream_end=False):
            shown.append(text)

    streamer = Shown(Tokenizer(), skip_prompt=True)
    own = {"npad_decoder": Greedy(), "stopping_criteria": StoppingCriteriaList()}
    found = model.generate(**given, **CALL, **own, streamer=streamer, **recipe)
    assert "".join(shown).split() == [f"w{token}" for token in found[0, 3:].tolist()]
    with pytest.raises(InvalidInput, match="assistant_model does not go with npad's search"):
        model.generate(**given, **CALL, assistant_model=model, **recipe)
    with pytest.raises(InvalidInput, match="stop_strings needs the tokenizer"):
        model.generate(**given, **CALL, stop_strings=["x"], **recipe)


def test_it_needs_trust(recipe):
    with pytest.raises(ValueError, match="trust_remote_code"):
        build("llama").generate(**tensors("llama"), **CALL, **recipe | {"trust_remote_code": False})


def test_the_card_lists_the_arguments():
    card = (RECIPE / "README.md").read_text()
    assert re.search(r"^tags:\n- custom_generate$", card, re.M)
    listed = set(re.findall(r"^\| `(npad_\w+)`", card, re.M))
    code = hf.npad.__code__
    own = {name for name in code.co_varnames[: code.co_argcount] if name.startswith("npad_")}
    assert listed == own - {"npad_streamer"}
