"""A phrase book to train on: some 1,300 English sentences, translated by the shipped model.

    python examples/phrasebook.py phrases

writes phrases/{train,valid,test}.{en,de}. The sentences are combinations of common words. Those of
test.en are in neither of the others, though their words are.
"""

from __future__ import annotations

import random
import sys
from itertools import product
from pathlib import Path

import npad

PLACES = "station library hotel museum airport hospital school church park supermarket bank"
PLACES = [*PLACES.split(), "theater", "restaurant", "post office", "police station", "city hall"]
ABOUT_PLACES = [
    *("Where is the {}?", "How do I get to the {}?", "Is the {} far from here?"),
    *("The {} is closed today.", "We are in front of the {}.", "There is a {} near my house."),
    *("The {} is very old.", "I am looking for the {}.", "The {} is not far away."),
    *("Let's meet at the {}.", "I can see the {} from here.", "The {} is open on Sundays."),
    *("My house is near the {}.", "This is the {}.", "We went to the {} yesterday."),
]
THINGS = ["a cup of coffee", "a glass of water", "an apple", "a beer", "a sandwich", "some bread"]
THINGS += ["a piece of cake", "a bottle of wine", "a ticket to Berlin", "a new phone", "a map"]
ABOUT_THINGS = ["I would like {}.", "Could I have {}, please?", "She bought {}.", "I need {}."]
ABOUT_THINGS += ["He wants {}.", "Do you have {}?", "They brought {}.", "We ordered {}."]
PEOPLE = ["I", "You", "We", "They", "My parents", "The children"]  # play
OTHERS = ["He", "She", "Tom", "My brother", "My sister", "Our teacher"]  # plays
ACTIONS = ["play football", "work in a hospital", "live in Berlin", "speak English", "cook dinner"]
ACTIONS += ["drink coffee", "go to school", "learn German", "read a book", "listen to music"]
ACTIONS += ["drive to work", "write a letter", "eat breakfast", "visit my friends"]
TIMES = ["", " every day", " in the morning", " on Sundays", " with my friends"]
PHRASES = ["How are you?", "Good morning.", "Good evening.", "Thank you very much.", "Excuse me."]
PHRASES += ["What is your name?", "My name is Tom.", "See you tomorrow.", "I do not understand."]
PHRASES += ["How much does it cost?", "What time is it?", "Can you help me?", "I am tired."]

TIMES_PHRASES = 6  # in the training pairs, since no other sentence is like them


def sentences() -> list[str]:
    """Return all combinations, in English."""
    found = [frame.format(place) for frame, place in product(ABOUT_PLACES, PLACES)]
    found += [frame.format(thing) for frame, thing in product(ABOUT_THINGS, THINGS)]
    for action, time in product(ACTIONS, TIMES):
        verb, _, rest = action.partition(" ")
        third = "goes" if verb == "go" else f"{verb}s"
        found += [f"{person} {action}{time}." for person in PEOPLE]
        found += [f"{person} {third} {rest}{time}." for person in OTHERS]
    for action in ACTIONS:
        found += [f"{person} do not {action}." for person in PEOPLE]
        found += [f"{person} does not {action}." for person in OTHERS]
    return found


def main(folder: Path) -> None:
    """Write the phrase book."""
    folder.mkdir(parents=True, exist_ok=True)
    splits: dict[str, list[str]] = {"train": PHRASES * TIMES_PHRASES, "valid": [], "test": []}
    rng = random.Random(1)
    for sentence in sentences():
        splits[rng.choices(["train", "valid", "test"], [10, 1, 1])[0]].append(sentence)
    translator = npad.load("en-de")
    for split, english in splits.items():
        german = [found.text for found in translator.translate(english, npad.Beam(5))]
        for suffix, lines in (("en", english), ("de", german)):
            (folder / f"{split}.{suffix}").write_text("".join(f"{line}\n" for line in lines))
        print(f"{folder / split}.en and .de: {len(english):,} pairs")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
