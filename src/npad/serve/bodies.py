"""The parameters of a request, from its query, JSON or form; bounded in size and time."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any
from urllib.parse import parse_qsl

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from npad.errors import InvalidInput
from npad.serve.limits import CLIENT_GONE, Limits, RequestRefused, busy
from npad.specs import parse_value
from npad.validation import brief, ensure_choice, ensure_integer, ensure_number

logging.getLogger("python_multipart").setLevel(logging.ERROR)  # refusals have a line of their own
MAX_FIELDS = 100  # of a form or query
SLOWEST = 500_000  # bytes per second of a body, once the time for its beginning is over

Schema = dict[str, Any]  # JSON Schema
ANY_TEXT: Schema = {"type": "string"}
TEXT: Schema = {"type": "string", "minLength": 1}  # not blank; of several, one at least
TEXTS: Schema = {"oneOf": [TEXT, {"type": "array", "items": TEXT}]}
MODEL: Schema = TEXT | {"description": "a model's id; the first by default"}

JSON, FORM, MULTIPART = (
    "application/json",
    "application/x-www-form-urlencoded",
    "multipart/form-data",
)


async def read_body(request: Request, limits: Limits, limit: int) -> AsyncGenerator[bytes]:
    """Yield the body of a request as it arrives.

    Args:
        request: whose body is read.
        limits: for the time, of which there is more as more bytes arrive.
        limit: bytes that the body may have.

    Raises:
        RequestRefused: it is larger, arrives too slowly, or the client goes away.
    """
    ensure_size(declared_size(request), limit)
    loop, stream, received = asyncio.get_running_loop(), request.stream(), 0
    end = loop.time() + limits.receive_seconds
    while True:
        try:
            async with asyncio.timeout_at(end + received / SLOWEST):
                chunk = await anext(stream, None)
        except TimeoutError:
            seconds = limits.receive_seconds + received / SLOWEST
            raise RequestRefused(408, f"the body did not arrive within {seconds:.3g} s") from None
        except ClientDisconnect:
            raise RequestRefused(CLIENT_GONE, "the client closed the connection") from None
        if chunk is None:
            return
        received += len(chunk)
        ensure_size(received, limit)
        yield chunk


def declared_size(request: Request) -> int:
    """Return the size of a body by its header; 0 if it is sent in chunks."""
    declared = request.headers.get("content-length", "0")
    return int(declared[:20]) if declared.isdecimal() else sys.maxsize


def ensure_size(size: int, limit: int) -> None:
    """Refuse a body of more bytes than the limit."""
    if size > limit:
        raise RequestRefused(413, f"the body must have at most {limit:,} bytes")


def content_type(request: Request) -> str:
    """Return the content type of a request, without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def body_parameters(request: Request, limits: Limits) -> dict[str, Any]:
    """Return the parameters in a body of JSON or of a form.

    Raises:
        RequestRefused: the content type is another one, or the body is too large or too slow.
        InvalidInput: the body is not what its content type says.
    """
    kind = content_type(request)
    if kind not in (JSON, FORM):
        found = f"it is {brief(kind, 60)}" if kind else "it is missing"
        raise RequestRefused(415, f"send Content-Type: {JSON} with JSON, or {FORM}; {found}")
    body = b"".join([chunk async for chunk in read_body(request, limits, limits.body)])
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidInput("the body must be UTF-8") from None
    if kind == FORM:
        if text.lstrip().startswith("{"):  # the default of curl -d
            raise RequestRefused(415, f"the body is JSON: send Content-Type: {JSON}, not {FORM}")
        return dict(_pairs(text))
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise InvalidInput(f"the body must be JSON: {brief(str(reason), 100)}") from None
    if not isinstance(content, dict):
        raise InvalidInput(f"the body must be a JSON object, not {brief(content, 60)}")
    return content


def query_parameters(request: Request) -> dict[str, str]:
    """Return the parameters of a query; the last one counts."""
    raw = request.scope.get("query_string", b"").decode("latin-1")
    return dict(_pairs(raw))


def _pairs(text: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(
            text, keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="surrogateescape"
        )
    except ValueError:
        raise InvalidInput(f"there must be at most {MAX_FIELDS} parameters") from None


class Budget:
    """Bytes on disk that all requests in progress share.

    Args:
        limit: the bytes.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0

    @contextmanager
    def share(self, size: int) -> Iterator[None]:
        """Hold some bytes while the block runs.

        Raises:
            RequestRefused: others hold too many.
        """
        if self.used + size > self.limit:
            raise busy(503, f"uploads of {self.used:,} bytes are in progress")
        self.used += size
        try:
            yield
        finally:
            self.used -= size


@asynccontextmanager
async def form_parameters(
    request: Request, limits: Limits, budget: Budget
) -> AsyncIterator[dict[str, Any]]:
    """Read a multipart form to disk; its fields, of which `file` is an open file.

    Raises:
        RequestRefused: the content type is another one, the body is too large or too slow, or too
            many others are being uploaded.
        InvalidInput: the form is malformed, or has no field `file`.
    """
    if content_type(request) != MULTIPART:
        raise RequestRefused(415, f"send {MULTIPART} with a field `file`")
    size = declared_size(request)
    ensure_size(size, limits.audio)

    async def chunks() -> AsyncGenerator[bytes]:
        end = b""
        async for chunk in read_body(request, limits, limits.audio):
            yield chunk
            end = (end + chunk[-8:])[-8:]
        if not end.rstrip().endswith(b"--"):
            raise MultiPartException("it ends early")

    with budget.share(size or limits.audio):
        try:
            parser = MultiPartParser(request.headers, chunks(), max_files=1, max_fields=MAX_FIELDS)
            form = await parser.parse()
        except (MultiPartException, KeyError, ValueError) as error:
            message = getattr(error, "message", "its boundary is missing")
            raise InvalidInput(f"the form is malformed: {brief(str(message), 100)}") from None
        try:
            uploaded = form.get("file")
            if not isinstance(uploaded, UploadFile):
                raise InvalidInput("the form has no file; send the recording as the field `file`")
            yield dict(form) | {"file": uploaded.file}
        finally:
            await form.close()


def checked(
    given: dict[str, Any], needs: Mapping[str, Schema], takes: Mapping[str, Schema], limits: Limits
) -> dict[str, Any]:
    """Take the parameters of an operation out of those given, and return their values.

    Args:
        given: by name, as JSON or as text; what is left are options of decoders.
        needs: the schemas of those that must be there.
        takes: the schemas of the others; an empty one counts as not set, which is None.
        limits: of texts.

    Raises:
        InvalidInput: one is missing, or breaks a rule of its schema.
    """
    values = {}
    for name, schema in {**needs, **takes}.items():
        value = given.pop(name, None)
        if value is None and name in needs:
            expected = "a text, or a list of texts" if "oneOf" in schema else "a text"
            raise InvalidInput(f"{name} is missing: {expected}")
        missing = value is None or (value == "" and name in takes)
        values[name] = schema.get("default") if missing else _value(name, value, schema, limits)
    return values


def _value(name: str, value: Any, schema: Schema, limits: Limits) -> Any:
    """Return the value of a parameter that keeps the rules of its schema."""
    match schema:
        case {"format": "binary"}:
            return value
        case {"enum": [choice]}:
            if value != choice:
                raise InvalidInput(f"{name} must be {choice}; {brief(value)} is not supported")
        case {"enum": choices}:
            ensure_choice(name, value, tuple(choices))
        case {"type": "integer", "minimum": minimum, "maximum": maximum}:
            if isinstance(value, str) and value.isdecimal() and len(value) < 10:
                value = int(value)
            ensure_integer(name, value, minimum, maximum)
        case {"type": "number", "minimum": minimum}:
            value = parse_value(name, value, float) if isinstance(value, str) else value
            ensure_number(name, value, minimum=minimum)
        case {"type": "object"}:
            value = _object(name, value)
        case {"oneOf": [text, _]}:
            _ensure_texts(name, texts_of(value), text, limits)
        case _:
            if isinstance(value, list):
                raise InvalidInput(f"{name} must be one text, not a list")
            _ensure_texts(name, [value], schema, limits)
    return value


def _object(name: str, value: Any) -> dict[str, Any]:
    """Return a JSON object, which is a text in a query or a form."""
    read = value
    if isinstance(value, str):
        with suppress(ValueError, RecursionError):
            read = json.loads(value)
    if not isinstance(read, dict):
        raise InvalidInput(f"{name} must be a JSON object, not {brief(value, 60)}")
    return read


def texts_of(value: Any) -> list[Any]:
    """Return the texts of a parameter that may be one or a list of them."""
    return value if isinstance(value, list) else [value]


def _ensure_texts(name: str, texts: list[Any], schema: Schema, limits: Limits) -> None:
    if not texts:
        raise InvalidInput(f"{name} must be a text, or a list of texts; it is empty")
    if len(texts) > limits.texts:
        raise InvalidInput(f"{name} must have at most {limits.texts} texts, not {len(texts)}")
    for text in texts:
        if not isinstance(text, str):
            raise InvalidInput(f"{name} must be a text, not {brief(text, 60)}")
        if len(text) > limits.characters:
            rule = f"must have at most {limits.characters:,} characters"
            raise InvalidInput(f"{name} {rule}, not {len(text):,}; split it")
        if "\0" in text:
            raise InvalidInput(f"{name} must be text, and holds a null character")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise InvalidInput(f"{name} holds half a surrogate pair, which is not text") from None
    if "minLength" in schema and not any(text.strip() for text in texts):
        raise InvalidInput(f"{name} must not be empty")
