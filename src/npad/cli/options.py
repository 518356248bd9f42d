"""Options that several commands share: which model, which device, and how to decode."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

from npad.errors import InvalidInput
from npad.named import parse
from npad.noise.named import DISTRIBUTIONS, named
from npad.noise.noisy import Noise
from npad.search.beam import Beam
from npad.search.decoder import Decoder
from npad.search.diverse import Diverse
from npad.search.exact import Exact
from npad.search.greedy import Greedy
from npad.search.npad import NPAD
from npad.search.sampling import Sampling
from npad.selectors import MBR, GNMTLength, LengthNormalised, MostProbable

DECODING = "How to decode"
OUTPUT = "What to write"
DEFAULT_MODEL = "en-de"


class Strategy(StrEnum):
    """The values of --decoder."""

    greedy = "greedy"
    beam = "beam"
    sampling = "sampling"
    diverse = "diverse"
    exact = "exact"
    npad = "npad"


class Finish(StrEnum):
    """The values of --finish."""

    shrink = "shrink"
    compete = "compete"
    pool = "pool"


class Candidates(StrEnum):
    """The values of --candidates."""

    best = "best"
    all = "all"


ModelName = Annotated[
    str, typer.Option("--model", "-m", help="`en-de`, `toy`, a folder of `npad train`, `hf:NAME_OR_PATH`.")
]
Device = Annotated[
    str, typer.Option(metavar="NAME", help="`cpu`, `cuda`, `cuda:1`, …; `auto` takes a GPU if there is one.")
]
Precision = Annotated[
    str,
    typer.Option(metavar="NAME", help="Of NPAD's noisy chains: float32, bfloat16, float16, int8. Scores stay float32."),
]
MaxLength = Annotated[int, typer.Option(help="Symbols an output may have, its end included.", min=1)]
MaxSource = Annotated[int, typer.Option(help="Symbols a source may have.", min=1)]
MaxRows = Annotated[
    int, typer.Option(help="Rows (sentences × chains × beams) at a time; for memory and speed only.", min=1)
]


def _option(*names: str, help: str, **rest: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=DECODING, **rest)


def _number(help: str, *names: str) -> Any:
    return _option(*names, help=help, metavar="N")


def _name(help: str, *names: str) -> Any:
    return _option(*names, help=help, metavar="NAME")


# None has a default here: the decoders have theirs, and an option that a decoder does not know is refused.
DECODER_OPTIONS: dict[str, Any] = {
    "width": Annotated[int | None, _number("beam, diverse: hypotheses kept at each step. [5]")],
    "finish": Annotated[Finish | None, _name("beam: what a finished one does, shrink, compete or pool. [shrink]")],
    "samples": Annotated[int | None, _number("sampling: samples a sentence. [50]")],
    "temperature": Annotated[float | None, _number("sampling: below 1 sharpens, above 1 flattens. [1]")],
    "top_k": Annotated[int | None, _number("sampling: draw from the N most probable symbols.")],
    "top_p": Annotated[float | None, _number("sampling: draw from the fewest symbols that reach N together.")],
    "eta": Annotated[float | None, _number("diverse: the penalty on siblings. [0.001]")],
    "budget": Annotated[int | None, _number("exact: model calls a sentence before giving up. [100000]")],
    "inner": Annotated[Strategy | None, _name("npad: what each chain runs, any but npad. [greedy]")],
    "chains": Annotated[int | None, _number("npad: chains a sentence, the clean one included. [50]", "--chains", "-M")],
    "sigma": Annotated[str | None, _number("npad: noise σ₀; or one a chain, 0,0.1,0.2. [0.3]", "--sigma", "-s")],
    "schedule": Annotated[
        str | None,
        _name(
            "npad: σ over time: 1/t, constant, power(p=0.5), linear(steps=20), cosine(steps=20), "
            "exponential(decay=0.8), first-steps(n=3) or adaptive(power=1). [1/t]"
        ),
    ],
    "noise": Annotated[
        str | None,
        _name(
            "npad: gaussian, uniform, laplace, student-t(nu=5), dropout, fixed, antithetic or orthogonal. [gaussian]"
        ),
    ],
    "site": Annotated[str | None, _name("npad: where noise enters, one of the model's sites. [hidden]")],
    "relative": Annotated[
        bool | None, _option("--relative", help="npad: σ is a share of the RMS of what it perturbs.")
    ],
    "clean_chain": Annotated[
        bool | None, _option("--clean-chain/--no-clean-chain", help="npad: chain 0 runs without noise. [yes]")
    ],
    "selector": Annotated[
        str | None,
        _name(
            "npad: who is returned: most-probable, length-normalised(alpha=1), gnmt-length(alpha=0.6,beta=0) or mbr. "
            "[most-probable]"
        ),
    ],
    "candidates": Annotated[
        Candidates | None, _name("npad: what a chain hands to the judge, its best or all that finished. [best]")
    ],
    "share_noise": Annotated[bool | None, _option("--share-noise", help="npad: a chain's beam shares its noise.")],
    "seed": Annotated[int | None, _number("npad, sampling: another N, other noise. [0]")],
}
NOISE = ("sigma", "schedule", "noise", "site", "relative")
CHAINS = ("chains", "clean_chain", "selector", "candidates", "share_noise", "seed")
PLAIN: dict[str, tuple[Any, tuple[str, ...]]] = {
    "greedy": (Greedy, ()),
    "beam": (Beam, ("width", "finish", "nbest")),
    "sampling": (Sampling, ("samples", "temperature", "top_k", "top_p", "seed")),
    "diverse": (Diverse, ("width", "eta", "nbest")),
    "exact": (Exact, ("budget",)),
}
SELECTORS = (MostProbable, LengthNormalised, GNMTLength, MBR)


def decodes(usual: Strategy = Strategy.beam) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of all decoders; it receives the decoder they make, as `decoder`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def wrapped(decoder: Strategy = usual, **values: Any) -> None:
            given = {name: values.pop(name) for name in DECODER_OPTIONS}
            given["nbest"] = values.get("nbest")
            made = make(decoder, {name: value for name, value in given.items() if value is not None})
            command(decoder=made, **values)

        own = inspect.signature(command, eval_str=True)
        parameters = [parameter for parameter in own.parameters.values() if parameter.name != "decoder"]
        which = Annotated[Strategy, _name(f"{', '.join(Strategy)}.", "--decoder", "-d")]
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter("decoder", keyword, default=usual, annotation=which))
        parameters += [
            inspect.Parameter(name, keyword, default=None, annotation=annotation)
            for name, annotation in DECODER_OPTIONS.items()
        ]
        wrapped.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapped

    return decorate


def make(strategy: str, given: dict[str, Any]) -> Decoder:
    """The decoder that some options describe."""
    given = {name: str(value) if isinstance(value, StrEnum) else value for name, value in given.items()}
    if strategy != "npad":
        return _plain(strategy, given, f"--decoder {strategy}")
    inner = given.pop("inner", "greedy")
    if inner == "npad":
        raise InvalidInput("NPAD cannot be its own inner decoder; use more chains")
    noise = {name: given.pop(name) for name in NOISE if name in given}
    own = {name: given.pop(name) for name in CHAINS if name in given}
    if "selector" in own:
        own["selector"] = parse("selector", own["selector"], SELECTORS)
    if "seed" in own and inner == "sampling":
        given["seed"] = own["seed"]
    given.pop("nbest", None)  # the other chains have the others
    return NPAD(_plain(inner, given, f"--inner {inner}"), noise=_noise(**noise), **own)


def _plain(strategy: str, given: dict[str, Any], who: str) -> Decoder:
    kind, knows = PLAIN[strategy]
    if given.get("nbest") == 1 or strategy == "sampling":  # which returns all it has
        given.pop("nbest", None)
    for name in given:
        if name not in knows:
            flag, *flags = ("--" + one.replace("_", "-") for one in (name, *knows))
            raise InvalidInput(f"{flag} does not go with {who}, which has {', '.join(flags) or 'no options'}")
    decoder: Decoder = kind(**given)
    return decoder


def _noise(sigma: str = "0.3", noise: str = "gaussian", **rest: Any) -> Noise:
    try:
        numbers = [float(part) for part in sigma.split(",")]
    except ValueError as error:
        raise InvalidInput(f"--sigma must be a number, or numbers with commas between them, not {sigma!r}") from error
    if parse("noise", noise, DISTRIBUTIONS).relative_only and not rest.get("relative"):
        raise InvalidInput(f"--noise {noise} is a share of what it perturbs: add --relative")
    return named(numbers[0] if len(numbers) == 1 else tuple(numbers), distribution=noise, **rest)
