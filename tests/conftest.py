import os
from importlib.util import find_spec
from pathlib import Path

import torch
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # which Triton reads when it is imported
torch.set_num_threads(1)  # two workers share two cores
settings.register_profile("npad", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("npad")

collect_ignore: list[str] = []
if find_spec("transformers") is None:  # without the extra hf
    collect_ignore += [
        path.name
        for path in Path(__file__).parent.glob("*.py")
        if "\nfrom transformers" in path.read_text()
    ]
