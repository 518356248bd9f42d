"""CTranslate2 behind `huggingface_peers.py`: one JSON line in, one out.

Started by `huggingface_peers.py` with the interpreter that has ctranslate2, torch and transformers.
The first line names the folder that holds a model of transformers, its compute type and the number
of threads; the converter of CTranslate2 converts it. Each further line, such as {"sources": [[5,
9]], "beam": 5, "samples": 1, "length": 20}, is answered with the seconds of the search and the
tokens found. A line with "features" runs Whisper on the array in that file.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from typing import Any

import ctranslate2
import numpy as np
import torch
import transformers
from ctranslate2.converters.transformers import _MODEL_LOADERS

PAD = "<pad>"  # the converter drops Marian's by this name


class Numbers:
    """A tokenizer whose tokens are numbers, for models of random weights."""

    def __init__(self, config: Any) -> None:
        self.tokens = [f"t{i}" for i in range(config.vocab_size)]
        if config.pad_token_id is not None:
            self.tokens[config.pad_token_id] = PAD
        self.eos_token = self.unk_token = self.tokens[config.eos_token_id]
        self.pad_token = PAD if PAD in self.tokens else self.eos_token
        self.bos_token = self.pad_token

    def get_vocab(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.tokens)}

    def convert_ids_to_tokens(self, index: int) -> str:
        return self.tokens[index]


def convert(folder: str, output: str) -> tuple[str, int]:
    """Convert a model of transformers; return the kind of its configuration and its parameters."""
    config = transformers.AutoConfig.from_pretrained(folder)
    loader = _MODEL_LOADERS[type(config).__name__]
    model = getattr(transformers, loader.architecture_name).from_pretrained(folder)
    parameters = sum(weight.numel() for weight in model.parameters())
    for name in ("normalize_before", "normalize_embedding"):  # of old versions of transformers
        default = name == "normalize_embedding"
        setattr(model.config, name, getattr(model.config, name, default))
    whisper = config.model_type == "whisper"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder) if whisper else Numbers(config)
    with torch.no_grad():
        specification = loader(model, tokenizer)
    specification.validate()
    specification.optimize()
    specification.save(output)
    return str(config.model_type), parameters


class Engine:
    """A converted model and its searches."""

    def __init__(self, folder: str, compute_type: str, threads: int) -> None:
        self.clock = time.process_time if threads == 1 else time.perf_counter
        kinds = {"whisper": ctranslate2.models.Whisper, "llama": ctranslate2.Generator}
        with tempfile.TemporaryDirectory() as output:
            self.kind, self.parameters = convert(folder, output)
            kind = kinds.get(self.kind, ctranslate2.Translator)
            settings = {"compute_type": compute_type, "intra_threads": threads}
            self.model = kind(output, "cpu", inter_threads=1, **settings)

    def search(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the seconds of a search, and the tokens that it found for each source."""
        length, samples, beam = request["length"], request["samples"], request["beam"]
        options: dict[str, Any] = {"beam_size": beam, "return_scores": True}
        if samples > 1:
            options |= {"num_hypotheses": samples, "sampling_topk": 0}
        if self.kind == "whisper":
            features = ctranslate2.StorageView.from_array(np.load(request["features"]))
            prompts = [request["prompt"]] * len(np.load(request["features"]))
            start = self.clock()
            found = self.model.generate(features, prompts, max_length=length, **options)
            seconds = self.clock() - start
            return {"seconds": seconds, "tokens": [x.sequences_ids[0] for x in found]}
        sources = [[f"t{token}" for token in source] for source in request["sources"]]
        if self.kind == "llama":
            lengths = {"min_length": length, "max_length": length}
            start = self.clock()
            found = self.model.generate_batch(
                sources, include_prompt_in_result=False, **lengths, **options
            )
            seconds = self.clock() - start
            return {"seconds": seconds, "tokens": [x.sequences_ids[0] for x in found]}
        lengths = {"min_decoding_length": length, "max_decoding_length": length}
        start = self.clock()
        found = self.model.translate_batch(sources, **lengths, **options)
        seconds = self.clock() - start
        return {"seconds": seconds, "tokens": [x.hypotheses[0] for x in found]}


def main() -> None:
    replies, sys.stdout = sys.stdout, sys.stderr
    engine = Engine(**json.loads(sys.stdin.readline()))
    about = {"version": ctranslate2.__version__, "parameters": engine.parameters}
    print(json.dumps(about), file=replies, flush=True)
    for line in sys.stdin:
        print(json.dumps(engine.search(json.loads(line))), file=replies, flush=True)


if __name__ == "__main__":
    main()
