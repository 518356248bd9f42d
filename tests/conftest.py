import torch
from hypothesis import settings

torch.set_num_threads(1)  # two workers share two cores
settings.register_profile("npad", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("npad")
