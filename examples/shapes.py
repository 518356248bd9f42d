"""Draw pictures of two coloured shapes, and write what they show: a small corpus of captions.

python examples/shapes.py FOLDER        writes train.tsv, valid.tsv, test.tsv and pictures/
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from PIL import Image, ImageDraw

SIZE = 24  # pixels of a side
SPLITS = {"train": 1200, "valid": 100, "test": 100}
COLOURS = {"red": "#d62828", "green": "#2a9d3f", "blue": "#1d4ed8", "yellow": "#f2c500"}
SHAPES = ("circle", "square", "triangle")


def draw(image: Image.Image, colour: str, shape: str, centre: tuple[float, float]) -> None:
    """Draw one shape."""
    (x, y), radius = centre, SIZE / 6
    box = (x - radius, y - radius, x + radius, y + radius)
    pen = ImageDraw.Draw(image)
    if shape == "circle":
        pen.ellipse(box, fill=COLOURS[colour])
    elif shape == "square":
        pen.rectangle(box, fill=COLOURS[colour])
    else:
        pen.polygon([(x, box[1]), (box[0], box[3]), (box[2], box[3])], fill=COLOURS[colour])


def picture(rng: random.Random) -> tuple[Image.Image, list[str]]:
    """Return a picture of two shapes, one above the other, and its two captions."""
    level = rng.randint(200, 255)
    image = Image.new("RGB", (SIZE, SIZE), (level, level, level))
    names = []
    for height in (0.25, 0.75):
        colour, shape = rng.choice(list(COLOURS)), rng.choice(SHAPES)
        centre = (rng.uniform(0.25, 0.75), height + rng.uniform(-0.05, 0.05))
        draw(image, colour, shape, (SIZE * centre[0], SIZE * centre[1]))
        names.append(f"a {colour} {shape}")
    upper, lower = names
    return image, [f"{upper} above {lower}", f"{lower} below {upper}"]


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
