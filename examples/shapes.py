"""Draw pictures of coloured shapes, and write what they show: a small corpus of captions.

python examples/shapes.py FOLDER        writes train.tsv, valid.tsv, test.tsv and pictures/
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from PIL import Image, ImageDraw

SIZE = 24  # pixels of a side
SPLITS = {"train": 1000, "valid": 100, "test": 100}
COLOURS = {"red": "#d62828", "green": "#2a9d3f", "blue": "#1d4ed8", "yellow": "#f2c500"}
SHAPES = ("circle", "square", "triangle")
RADIUS = 5  # pixels
HEIGHTS = {"top": 0.3, "bottom": 0.7}  # shares of the picture


def picture(rng: random.Random) -> tuple[Image.Image, list[str]]:
    """Return a picture of one shape, and its two captions."""
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
    return image, [f"{thing} at the {place}", f"at the {place}, {thing}"]


def main(folder: Path) -> None:
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


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "shapes"))
