"""The CPU time of signals, as a share of the time of the search that they read.

python -m studies.confidence.cost --data tatoeba-en-de --model en-de

One thread; search and signals in one process, so that a busy machine slows both.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

import npad
from npad import NPAD, Beam, Greedy, Sampling
from npad.evaluate.confidence import default_signals
from npad.metrics.chrf import Chrf
from npad.pipelines.estimates import candidates_of
from npad.specs import label
from npad.text.files import read_lines

SENTENCES = 200


def main() -> None:
    """Print the time of each search and of each signal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="en-de")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    translator = npad.load(arguments.model)
    sources = list(read_lines(arguments.data / "test.en.xz"))[:SENTENCES]
    translator.translate(sources[:20], Greedy())  # warm
    for decoder in (Sampling(20), NPAD(chains=20), Beam(20, nbest=20)):
        start = time.process_time()
        outputs = translator.translate(sources, decoder)
        search = time.process_time() - start
        print(f"{decoder.title}: {1000 * search / len(sources):.2f} ms per sentence")
        for signal in default_signals(Chrf()):
            start = time.process_time()
            for output in outputs:
                found = [output, *output.alternatives]
                hypotheses = [other.hypothesis for other in found]
                texts = [other.text for other in found]
                listed = candidates_of(hypotheses, texts, translator.comparable)
                signal(listed[0], listed)
            spent = time.process_time() - start
            print(f"  {label(signal)}: {spent / search:.2%}")


if __name__ == "__main__":
    main()
