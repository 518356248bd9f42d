"""Draw pictures of coloured shapes with captions, and train a small model on them.

python examples/shapes.py FOLDER     writes pictures/, train.tsv, valid.tsv, test.tsv, and run/

The network is smaller than that of `npad train --task caption`, to train in half a minute on one
core of a CPU. One thread is enough for it: several would spend their time waiting for each other.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import torch
from PIL import Image, ImageDraw

from npad.cli.display import Display
from npad.training import run
from npad.training.recipe import Recipe

SIZE = 24  # pixels of a side
SPLITS = {"train": 1000, "valid": 100, "test": 100}
COLOURS = {"red": "#d62828", "green": "#2a9d3f", "blue": "#1d4ed8", "yellow": "#f2c500"}
SHAPES = ("circle", "square", "triangle")
RADIUS = 5  # pixels
HEIGHTS = {"top": 0.3, "bottom": 0.7}  # shares of the picture


def picture(rng: random.Random) -> tuple[Image.Image, list[str]]:
    """Return a picture of one shape, and a caption or two."""
    level = rng.randint(200, 255)
    image = Image.new("RGB", (SIZE, SIZE), (level, level, level))
    colour, shape = rng.choice(list(COLOURS)), rng.choice(SHAPES)
    place = rng.choice(list(HEIGHTS))
    x, y = SIZE * rng.uniform(0.3, 0.7), SIZE * (HEIGHTS[place] + rng.uniform(-0.04, 0.04))
    left, top, right, bottom = (z + sign * RADIUS for sign in (-1, 1) for z in (x, y))
    pen, fill = ImageDraw.Draw(image), COLOURS[colour]
    if shape == "circle":
        pen.ellipse((left, top, right, bottom), fill=fill)
    elif shape == "square":
        pen.rectangle((left, top, right, bottom), fill=fill)
    else:
        pen.polygon([(x, top), (left, bottom), (right, bottom)], fill=fill)
    thing = f"a {colour} {shape}"
    captions = [f"{thing} at the {place}", f"at the {place}, {thing}"]
    return image, captions[: rng.choice((1, 1, 2))]


def write(folder: Path) -> None:
    """Write the pictures and the manifest of every split into a folder."""
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    rng = random.Random(1)
    for split, count in SPLITS.items():
        lines = []
        for number in range(count):
            image, captions = picture(rng)
            name = f"{split}-{number:04}.png"
            image.save(folder / "pictures" / name)
            lines += [f"{name}\t{caption}\n" for caption in captions]
        (folder / f"{split}.tsv").write_text("".join(lines))


def train(folder: Path) -> None:
    """Train on the folder's pictures, and show the progress on stderr."""
    splits = ("train", "valid")
    files = {split: [f"{folder}/pictures", f"{folder}/{split}.tsv"] for split in splits}
    data = {"task": "caption", "vocabulary": 330, "features": {"size": SIZE}, **files}
    options = {"units": 64, "embedding": 32, "dropout": 0.0, "initialisation": "glorot"}
    encoder = {"source_options": {"channels": [16, 32, 32]}}
    recipe = Recipe(batch=60, epochs=6, learning_rate=2e-3, anneal=True)
    watch = Display()
    with watch.live():
        run.train(folder / "run", data, options | encoder, recipe, watch=watch)


if __name__ == "__main__":
    torch.set_num_threads(1)
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "shapes")
    write(target)
    train(target)
    print(f"The model is {target}/run; it took {time.process_time():.0f} s of CPU time")
