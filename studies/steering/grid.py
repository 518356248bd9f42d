"""The table of the variants of an actor that were tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from npad.reproduce.markdown import markdown_table
from npad.reproduce.record import Record
from studies.steering.variant import WEIGHTS, Variant

MAIN = ("actor", "weights")  # the variants of the report's rows


def grid_table(results: Record) -> str:
    """Return the table of all variants that were trained to choose from; empty without any."""
    lines = []
    for key, value in results.results.items():
        if key[0] in MAIN and key[2] not in MAIN:
            kind, title, name, seed = key
            scores = [point["criterion"] for point in value["curve"]]
            figures = results.results.get(("figures", title, f"grid {name}", seed))
            lines.append(
                [
                    f"{title}, `{name}`",
                    settings(value["variant"]),
                    f"{value['parameters']:,}" if kind == "actor" else "all weights",
                    f"{value['greedy']:.2f}",
                    f"{max(scores):.2f}",
                    f"{scores.index(max(scores)) + 1} of {len(scores)}",
                    "–" if figures is None else f"{figures['bleu']:.2f}",
                ]
            )
    if not lines:
        return ""
    header = ["variant", "settings", "parameters", "greedy", "with variant", "epoch", "test BLEU"]
    return (
        markdown_table(header, lines)
        + "\n"
        + _tried(results)
        + "\nOne seed. `greedy` and `with variant` are BLEU of words on the validation set, under "
        "greedy search; the best epoch is kept. The test set was not used to choose.\n"
    )


def _tried(results: Record) -> str:
    """Say how many variants of actors and of fine-tuned weights each data set chose from."""
    counts: dict[str, dict[str, int]] = {}
    for kind, title, *rest in results.results:
        if kind in MAIN:
            counts.setdefault(title, dict.fromkeys(MAIN, 0))[kind] += rest[0] not in MAIN
    words = (f"{title} {count['actor']} and {count['weights']}" for title, count in counts.items())
    return (
        f"Variants of the actor and of fine-tuning tried: {', '.join(words)}. A set without "
        "a grid of its own has the choice of another one, or the defaults; a kind of which more "
        "were tried has the advantage.\n"
    )


def settings(variant: Mapping[str, Any]) -> str:
    """Return the settings of a variant that are not the defaults, in words."""
    default = asdict(Variant("default"))
    if variant["kind"] == WEIGHTS:
        default |= {name: variant[name] for name in ("kind", "units", "layers", "inputs", "sites")}
        default |= {"epochs": None, "rate": None}
    changed = {
        name: value for name, value in variant.items() if name != "name" and value != default[name]
    }
    return ", ".join(f"{name} {value}" for name, value in changed.items()) or "the defaults"
