"""Every decoding strategy side by side on the built-in toy translator, whose every probability is known.

make demo
"""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

import npad
from npad import NPAD, Beam, Counted, Decoder, Diverse, Exact, Greedy, Noise, Sampling, Translator

STRATEGIES: dict[str, Decoder] = {
    "greedy": Greedy(),
    "sampling, 5": Sampling(5),
    "beam, 2": Beam(2),
    "beam, 5": Beam(5),
    "diverse, 2, η=1": Diverse(2, eta=1.0),
    "NPAD-10 + greedy": NPAD(Greedy(), chains=10, noise=Noise(0.3)),
    "NPAD-10 + beam 2": NPAD(Beam(2), chains=10, noise=Noise(0.3)),
    "exact": Exact(),
}
PHRASES = ("das ist mir wurst", "ich verstehe nur bahnhof", "na ja")


def table(toy: Translator, phrase: str) -> Table:
    """One phrase: each strategy's output, its log-probability, and what it cost."""
    out = Table(title=f"[bold]{phrase}[/bold]", title_justify="left")
    out.add_column("strategy", min_width=17)
    out.add_column("output", min_width=26)
    for name in ("log p", "calls", "re-scored"):
        out.add_column(name, justify="right", min_width=6)
    rows = {}
    for name, decoder in STRATEGIES.items():
        counted = Counted(toy.model)
        best = Translator(counted, toy.encode, toy.detokenise).translate([phrase], decoder)[0]
        rows[name] = (best, counted.calls, counted.rescored)
    top = max(best.log_prob for best, _, _ in rows.values())
    for name, (best, calls, rescored) in rows.items():
        name += ", proven" if best.hypothesis.proven else ""
        style = "green" if best.log_prob > top - 1e-4 else ""
        out.add_row(name, best.text, f"{best.log_prob:.3f}", str(calls), str(rescored or "–"), style=style)
    return out


def main() -> None:
    console, toy = Console(), npad.load("toy")
    for phrase in PHRASES:
        console.print(table(toy, phrase), "")
    console.print(
        "log p      of the output under the clean model, end included; best in green\n"
        "calls      rows through one step of the model\n"
        "re-scored  the same, by the clean model that judges what noisy chains found\n",
        highlight=False,
    )
    signature = toy.translate(PHRASES[:1], STRATEGIES["NPAD-10 + greedy"])[0].signature
    console.print(signature, style="dim", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
