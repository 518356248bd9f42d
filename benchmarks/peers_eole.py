"""eole as `peers.py` asks it: an untrained model behind eole's own search, one JSON line in, one out.

Run by the interpreter that has eole, never by hand. The first line on stdin holds the sizes; each further one, such as
{"beam": 5, "batch": 50, "sentences": 200}, is answered with the seconds that the search took. eole loads the model from
a folder, as it would any, and makes its own batches; neither is timed.

The model is the nearest that eole 0.6.4 has to the paper's. Its encoder must be as wide as its decoder, both directions
together, hence 2 × 512 and not 2 × 1,024; its decoder has one GRU, which reads the symbol and the last context ("input
feed"), and its attention is as wide as that GRU; logits come straight from the hidden state. There are no positions and
no length penalty, as in npad. With a beam of 1 the search is eole's greedy one (top_k 1).
"""

from __future__ import annotations

import json
import logging
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from eole.config.models import build_model_config
from eole.config.run import PredictConfig
from eole.inference_engine import InferenceEnginePY
from eole.inputters.inputter import dict_to_vocabs
from eole.models.model import EncoderDecoderModel
from safetensors.torch import save_file

SPECIALS = {"unk_token": "<unk>", "pad_token": "<blank>", "bos_token": "<s>", "eos_token": "</s>"}


def architecture(units: int, embedding: int) -> dict[str, Any]:
    recurrent = {"rnn_type": "GRU", "hidden_size": units, "layers": 1}
    return {
        "architecture": "custom",
        "encoder": {"encoder_type": "brnn", **recurrent},
        "decoder": {"decoder_type": "rnn", "global_attention": "mlp", **recurrent},
        "embeddings": {"word_vec_size": embedding, "position_encoding_type": None},
        "input_feed": 1,
    }


def save(folder: Path, asked: dict[str, int]) -> int:
    """An untrained model as eole stores one, and how many numbers it has."""
    words = [*SPECIALS.values(), *(f"w{i}" for i in range(asked["symbols"] - len(SPECIALS)))]
    vocabulary = {
        "src": words,
        "tgt": words,
        "specials": SPECIALS,
        "decoder_start_token": SPECIALS["bos_token"],
    }
    config = architecture(asked["units"], asked["embedding"])
    model = EncoderDecoderModel.build(build_model_config(config), dict_to_vocabs(vocabulary), None)
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.xavier_uniform_(parameter)
        else:
            torch.nn.init.zeros_(parameter)
    save_file(
        {name: one.contiguous() for name, one in model.state_dict().items()},
        folder / "model.00.safetensors",
    )
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "config.json").write_text(
        json.dumps({"model": config, "src_vocab": "", "tgt_vocab": "", "data": {}})
    )
    return sum(one.numel() for one in model.parameters())


def engine(folder: Path, asked: dict[str, int]) -> InferenceEnginePY:
    length = asked["length"]
    fixed = {
        "min_length": length,
        "max_length": length,
        "max_length_ratio": 0,
        "length_penalty": "none",
    }
    return InferenceEnginePY(
        PredictConfig(model_path=str(folder), src="", compute_dtype="fp32", **fixed)
    )


def seconds(
    made: InferenceEnginePY, lines: list[str], length: int, beam: int, batch: int, sentences: int
) -> float:
    made.config.batch_size = batch
    batches = [one for one, _ in made._build_inference_iterator(src=lines[:sentences])]
    made.predictor.update_settings(beam_size=beam, top_k=1 if beam == 1 else 0)
    clock = (
        time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    )  # as in peers.py
    began = clock()
    with torch.inference_mode():
        found = [made.predictor.predict_batch(one, attn_debug=False) for one in batches]
    took = clock() - began
    sizes = [len(each[0]) for one in found for each in one["predictions"]]
    if sizes != [length] * sentences:
        raise RuntimeError(f"{sentences} outputs of {length} symbols were due, not of {sizes}")
    return took


def main() -> None:
    replies, sys.stdout = sys.stdout, sys.stderr  # what eole prints is not a reply
    asked = json.loads(sys.stdin.readline())
    torch.set_num_threads(asked["threads"])
    random.seed(0)
    words = range(asked["symbols"] - len(SPECIALS))
    lines = [
        " ".join(f"w{random.choice(words)}" for _ in range(asked["length"]))
        for _ in range(asked["sentences"])
    ]
    with tempfile.TemporaryDirectory() as folder:
        size = save(Path(folder), asked)
        made = engine(Path(folder), asked)
    logging.disable(logging.INFO)
    print(json.dumps({"parameters": size}), file=replies, flush=True)
    for line in sys.stdin:
        one = json.loads(line)
        took = seconds(made, lines, asked["length"], **one)
        print(json.dumps({"seconds": took}), file=replies, flush=True)


if __name__ == "__main__":
    main()
