"""npad serve: decoding over HTTP, and a page to watch it."""

from __future__ import annotations

import logging
import webbrowser
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Annotated

from npad.cli.options import DEFAULT_MODEL, Device, Precision, option
from npad.cli.terminal import note
from npad.engine.devices import device_named
from npad.errors import InvalidInput, missing_library
from npad.pipelines.names import TOY, language_pair
from npad.text.files import Lines


def command(
    model: Annotated[
        list[str] | None,
        option(
            "Model to serve, as in `npad translate`, or a Whisper model, `hf:NAME_OR_PATH`; "
            "repeat it for several. [en-de and toy]",
            "--model",
            "-m",
            metavar="NAME",
        ),
    ] = None,
    host: Annotated[
        str, option("Address to listen on; others need --token.", metavar="ADDRESS")
    ] = "127.0.0.1",
    port: Annotated[int, option("Port; 0 takes a free one.", metavar="N", min=0, max=65535)] = 8080,
    token: Annotated[
        str | None,
        option(
            "Token that clients must send; better in the environment, as NPAD_TOKEN.",
            metavar="TEXT",
            envvar="NPAD_TOKEN",
            show_envvar=False,
        ),
    ] = None,
    device: Device = "auto",
    precision: Precision = "float32",
    limit: Annotated[
        list[str] | None,
        option(
            "Change a limit of requests, such as `body=5000000` bytes or `seconds=120`; "
            "repeat it for several. docs/serving.md lists them.",
            metavar="NAME=N",
        ),
    ] = None,
    languages: Annotated[
        list[str] | None,
        option(
            "Languages of a model that does not name its own, as `en-de`, or `NAME=en-de` for "
            "one of several models.",
            metavar="[NAME=]FROM-TO",
        ),
    ] = None,
    warm: Annotated[
        list[str] | None,
        option(
            "Text, or file of lines, that models of texts decode before the server says that it is "
            "ready, so that first requests are fast; repeat it for texts of several lengths.",
            "--warm-up",
            metavar="TEXT|FILE",
        ),
    ] = None,
    open_page: Annotated[bool, option("Open the page in a browser.", "--open")] = False,
) -> None:
    """Serve models over HTTP, with a page that shows them decode.

    Needs the extra `serve`. The API is that of LibreTranslate, and one of its own with a stream of
    the search's steps: docs/serving.md.

    Examples:

        npad serve --open

        npad serve --model runs/en-cs --model whisper-tiny.en --port 9000

        npad serve --model runs/mine --languages en-cs

        npad serve --warm-up "How are you?" --warm-up longer.txt

        NPAD_TOKEN=$(openssl rand -hex 16) npad serve --host 0.0.0.0
    """
    for library in ("starlette", "uvicorn", "python_multipart", "prometheus_client"):
        if find_spec(library) is None:
            library = library.replace("_", "-")
            raise missing_library(f"npad serve needs {library}", "serve")
    from npad.pipelines.loading import load
    from npad.pipelines.translation import Translator
    from npad.serve import app, server
    from npad.serve.decoding import warm_up
    from npad.serve.limits import Limits
    from npad.serve.models import public_name, serve
    from npad.serve.security import Guard, ensure_reachable
    from npad.serve.service import Service

    ensure_reachable(host, token)
    where = device_named(device, "--device")
    limits = Limits.changed(limit or [])
    names: dict[str, str] = {}
    exact = [TOY] if precision == "float32" else []  # a table, which has no weights
    for name in dict.fromkeys(model or [DEFAULT_MODEL, *exact]):
        shown = public_name(name)
        if shown in names:
            raise InvalidInput(f"two models are called {shown}; rename the folder of one")
        names[shown] = name
    pairs = _languages(languages or [], list(names))
    texts = [text for given in warm or () for text in Lines.of(given)]
    logging.basicConfig(format="npad: %(message)s", level=logging.WARNING)
    with server.bind(host, port) as listener:  # before the models are loaded, which takes seconds
        pipelines = {shown: load(name, where, precision) for shown, name in names.items()}
        for shown, pair in pairs.items():
            if not isinstance(pipelines[shown], Translator):
                raise InvalidInput(f"--languages: {shown} does not translate texts")
            pipelines[shown] = replace(pipelines[shown], languages=pair)
        served = {shown: serve(shown, loaded, limits) for shown, loaded in pipelines.items()}
        for reader in (loaded for loaded in served.values() if not loaded.hears):
            warm_up(reader, texts, limits)
        url = server.url_of(listener)

        def started() -> None:
            note(f"serving {', '.join(served)} at {url}")
            if open_page:
                webbrowser.open(url)

        service = Service(served, limits, Guard(host, token))
        try:
            server.run(app.build(service), listener, limits, started)
        except KeyboardInterrupt:  # uvicorn raises it again after it has finished its requests
            note("stopped")


def _languages(options: Sequence[str], names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return the languages given for models, by the models' names."""
    found = {}
    for given in options:
        name, named, pair = given.rpartition("=")
        if not named and len(names) > 1:
            rule = f"--languages {given} is for one of several models"
            raise InvalidInput(f"{rule}: write --languages {names[0]}={given}")
        if named and name not in names:
            raise InvalidInput(f"--languages {given}: there is no {name} among {', '.join(names)}")
        found[name or names[0]] = language_pair(pair)
    return found
