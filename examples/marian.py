"""Several strategies on a Marian translation model: a random one, or yours.

python examples/marian.py                                        random weights, as a smoke test
python examples/marian.py Helsinki-NLP/opus-mt-en-de "How are you?"   a name or folder, and texts
"""

from __future__ import annotations

import sys
import tempfile

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import MarianConfig, MarianMTModel, PreTrainedTokenizerFast
from transformers.utils import logging

import npad
from npad import NPAD, Beam, Greedy, Noise, Sampling

WORDS = ["a", "dog", "runs", "home", "the", "man", "sees", "it", "now"]


def random_marian(folder: str) -> str:
    """Save an untrained Marian model with two layers and a vocabulary of nine words."""
    torch.manual_seed(0)
    vocabulary = {word: i for i, word in enumerate(["</s>", *WORDS, "<pad>"])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="it"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="</s>", pad_token="<pad>"
    ).save_pretrained(folder)
    pad = vocabulary["<pad>"]
    sizes = {
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
    }
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    special = {
        "pad_token_id": pad,
        "decoder_start_token_id": pad,
        "eos_token_id": 0,
        "forced_eos_token_id": None,
    }
    model = MarianMTModel(MarianConfig(vocab_size=len(vocabulary), **sizes, **heads, **special))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and "position" not in name:
                parameter.normal_(std=0.25)
        model.final_logits_bias[0, pad] = -1e4  # real Marian models never generate padding either
    model.save_pretrained(folder)
    return folder


def main(name: str | None = None, *texts: str) -> None:
    """Translate texts with every strategy, by a pretrained model or a random one."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        translator = npad.load(f"hf:{name or random_marian(folder)}")
    strategies = {
        "greedy": Greedy(),
        "beam 5": Beam(5),
        "sampling 10": Sampling(10),
        "NPAD-10": NPAD(Greedy(), chains=10, noise=Noise(0.5, relative=True)),
        "NPAD-10, beam 5": NPAD(Beam(5), chains=10, noise=Noise(0.5, relative=True)),
    }
    for text in texts or ("the man sees a dog", "it runs home"):
        print(text)
        for strategy, decoder in strategies.items():
            best = translator.translate([text], decoder, max_length=60 if name else 8)[0]
            print(f"  {best.log_prob:8.3f}  {strategy:16}  {best.text}")


if __name__ == "__main__":
    main(*sys.argv[1:])
