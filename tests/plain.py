"""Decoders as one would write them for one sentence with lists: slow, and easy to believe."""

from __future__ import annotations

import math

from npad.models.table import TableModel


def plain_beam(
    model: TableModel,
    width: int,
    finish: str,
    nbest: int,
    max_length: int,
    penalty=lambda rank: 0.0,
):
    """Beam search of one sentence, written with lists; returns (tokens, log_prob, finished)."""
    eos, table = model.special.eos, model.tables[0]
    ends_at_once = [float(i == eos) for i in range(model.vocabulary)]
    live, ended = [((), 0.0)], []
    for _ in range(max_length):
        children = []
        for history, score in live:
            p = table.get(history, ends_at_once)
            ranked = sorted(
                ((score + math.log(x), token) for token, x in enumerate(p) if x > 0), reverse=True
            )
            children += [
                (s - penalty(k), s, (*history, token)) for k, (s, token) in enumerate(ranked, 1)
            ]
        children.sort(reverse=True)
        children = [(history, score) for _, score, history in children]
        if finish == "shrink":
            taken = children[: width - len(ended)]
        elif finish == "compete":
            everyone = sorted(
                [(s, 1, h) for h, s in ended] + [(s, 0, h) for h, s in children], reverse=True
            )[:width]
            ended = [(h, s) for s, old, h in everyone if old]
            taken = [(h, s) for s, old, h in everyone if not old]
        else:
            ended += [(h, s) for h, s in children[:width] if h[-1] == eos]
            ended = sorted(ended, key=lambda one: -one[1])[:width]
            taken = [(h, s) for h, s in children if h[-1] != eos][:width]
        ended += [(h, s) for h, s in taken if h[-1] == eos]
        live = [(h, s) for h, s in taken if h[-1] != eos]
        if not live:
            break
    answers = [(h[:-1], s, True) for h, s in sorted(ended, key=lambda one: -one[1])]
    answers += [(h, s, False) for h, s in sorted(live, key=lambda one: -one[1])]
    return answers[:nbest]
