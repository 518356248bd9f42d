"""eole behind `peers.py`: an untrained model and eole's search, one JSON line in, one out.

Started by `peers.py` with the interpreter that has eole. The first line on stdin holds the sizes;
each further line, such as {"beam": 5, "batch": 50, "sentences": 200}, is answered with the seconds
of the search. eole loads the model from a folder and makes its own batches; neither is timed.

The model is the nearest that eole 0.6.4 has to the paper's. Its encoder must be as wide as its
decoder, both directions together, hence 2 × 512 and not 2 × 1,024; its decoder has one GRU, which
reads the token and the last context ("input feed"), and its attention is as wide as that GRU;
logits come straight from the hidden state. There are no positions and no length penalty, as in
npad. With a beam of 1 the search is eole's greedy one (top_k 1).
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


def save(folder: Path, sizes: dict[str, int]) -> int:
    """Save an untrained model in eole's format and return its number of parameters."""
    words = [*SPECIALS.values(), *(f"w{i}" for i in range(sizes["vocabulary"] - len(SPECIALS)))]
    vocabulary = {
        "src": words,
        "tgt": words,
        "specials": SPECIALS,
        "decoder_start_token": SPECIALS["bos_token"],
    }
    config = architecture(sizes["units"], sizes["embedding"])
    model = EncoderDecoderModel.build(build_model_config(config), dict_to_vocabs(vocabulary), None)
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.xavier_uniform_(parameter)
        else:
            torch.nn.init.zeros_(parameter)
    save_file(
        {name: tensor.contiguous() for name, tensor in model.state_dict().items()},
        folder / "model.00.safetensors",
    )
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "config.json").write_text(
        json.dumps({"model": config, "src_vocab": "", "tgt_vocab": "", "data": {}})
    )
    return sum(parameter.numel() for parameter in model.parameters())


def load_engine(folder: Path, sizes: dict[str, int]) -> InferenceEnginePY:
    length = sizes["length"]
    fixed = {
        "min_length": length,
        "max_length": length,
        "max_length_ratio": 0,
        "length_penalty": "none",
    }
    return InferenceEnginePY(
        PredictConfig(model_path=str(folder), src="", compute_dtype="fp32", **fixed)
    )


def time_search(
    engine: InferenceEnginePY, lines: list[str], length: int, beam: int, batch: int, sentences: int
) -> float:
    """Return the seconds to decode the first sentences, `batch` at a time."""
    engine.config.batch_size = batch
    batches = [tensors for tensors, _ in engine._build_inference_iterator(src=lines[:sentences])]
    engine.predictor.update_settings(beam_size=beam, top_k=1 if beam == 1 else 0)
    # The same clocks as in peers.py.
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    with torch.inference_mode():
        results = [engine.predictor.predict_batch(tensors, attn_debug=False) for tensors in batches]
    elapsed = clock() - start
    lengths = [len(nbest[0]) for result in results for nbest in result["predictions"]]
    if lengths != [length] * sentences:
        raise RuntimeError(f"expected {sentences} outputs of {length} tokens, not of {lengths}")
    return elapsed


def main() -> None:
    replies, sys.stdout = sys.stdout, sys.stderr  # keeps eole's own output out of the replies
    sizes = json.loads(sys.stdin.readline())
    torch.set_num_threads(sizes["threads"])
    random.seed(0)
    words = range(sizes["vocabulary"] - len(SPECIALS))
    lines = [
        " ".join(f"w{random.choice(words)}" for _ in range(sizes["length"]))
        for _ in range(sizes["sentences"])
    ]
    with tempfile.TemporaryDirectory() as folder:
        parameters = save(Path(folder), sizes)
        engine = load_engine(Path(folder), sizes)
    logging.disable(logging.INFO)
    print(json.dumps({"parameters": parameters}), file=replies, flush=True)
    for line in sys.stdin:
        seconds = time_search(engine, lines, sizes["length"], **json.loads(line))
        print(json.dumps({"seconds": seconds}), file=replies, flush=True)


if __name__ == "__main__":
    main()
