"""Text in, text out: `npad.load("hf:…")`, also for a model of many languages."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys

import pytest
import torch
from transformers import M2M100Config, M2M100ForConditionalGeneration, NllbTokenizer

import npad
from hf_cases import HEADS, LAYERS
from hf_cases import saved as saved
from npad import NPAD, Greedy, InvalidInput, Noise
from runs import ROOT

NOISY = NPAD(Greedy(), 8, Noise(0.5, relative=True))


@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_a_model_of_hugging_face_is_a_translator(saved, kind):
    translator = npad.load(f"hf:{saved / kind}")
    texts = ["w5 w6 w7", "w9", "w10 w11"]
    found = translator.translate(texts, NOISY, max_length=8)
    assert all(word.startswith("w") for one in found for word in one.text.split())
    assert any(one.alternatives for one in found)
    assert found[0].signature == npad.signature(NOISY, translator.model)
    alone = [translator.translate([text], NOISY, max_length=8)[0].text for text in texts]
    assert [one.text for one in found] == alone
    scored = 0
    for text, best in zip(texts, found, strict=True):
        for output in (best, *best.alternatives):
            tokens, source = output.hypothesis.tokens, translator.encode([text])
            if tuple(translator.tokenise([output.text])[0]) != tokens:
                continue  # it is spelt by other tokens
            scored += 1
            (log_probs,) = npad.score(translator.model, source, [[tokens]])
            assert translator.score([text], [output.text]) == pytest.approx(log_probs, abs=1e-4)
            if output.hypothesis.finished:
                assert log_probs == pytest.approx([output.log_prob], abs=1e-4)
    assert scored > 3


def test_the_example_runs_offline(capsys):
    runpy.run_path(str(ROOT / "examples/marian.py"))["main"]()
    out = capsys.readouterr().out
    assert out.count("NPAD-10") == 4
    assert out.startswith("the man sees a dog\n")


def test_without_the_extra_it_says_what_to_install():
    hidden = "import sys; sys.modules['transformers'] = None; "
    arguments = "sys.argv = ['npad', 'translate', '--model', 'hf:x', 'y']; "
    run = arguments + "from npad.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", hidden + run], capture_output=True, text=True)
    assert done.returncode == 2
    rule = r"npad: Hugging Face models need transformers: pip install .*\"transformers>=[\d.]+\"\n"
    assert re.fullmatch(rule, done.stderr)


@pytest.fixture(scope="module")
def nllb(tmp_path_factory):
    """A tiny random NLLB: its tokenizer marks the source, its decoder begins with the target."""
    folder = tmp_path_factory.mktemp("nllb")
    words = ["<s>", "<pad>", "</s>", "<unk>", *(f"▁{letter}" for letter in "abcdefghij")]
    languages = ["eng_Latn", "deu_Latn"]
    tokenizer = NllbTokenizer(
        {word: i for i, word in enumerate(words)}, [], extra_special_tokens=languages
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    special = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
    model = M2M100ForConditionalGeneration(
        M2M100Config(vocab_size=len(tokenizer), d_model=16, **LAYERS, **HEADS, **special)
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(std=0.4)
    model.save_pretrained(folder)
    return folder, tokenizer


def test_the_target_language_is_the_first_token(nllb):
    folder, tokenizer = nllb
    translator = npad.load(f"hf:{folder}:eng_Latn-deu_Latn")
    (source,) = translator.encode(["a b"])
    assert source[0] == tokenizer.convert_tokens_to_ids("eng_Latn")
    german = tokenizer.convert_tokens_to_ids("deu_Latn")
    model = M2M100ForConditionalGeneration.from_pretrained(folder)
    written = model.generate(
        torch.tensor([source]), forced_bos_token_id=german, max_new_tokens=7, do_sample=False
    )
    expected = [token for token in written[0].tolist()[2:] if token != 2]
    (found,) = translator.translate(["a b"], Greedy(), max_length=6)
    assert list(found.hypothesis.tokens) == expected
    for pair in ("eng_Latn-xyz_Latn", "eng_Latn-▁a"):  # one is unknown, one is a word
        with pytest.raises(InvalidInput, match="does not know the language"):
            npad.load(f"hf:{folder}:{pair}")
