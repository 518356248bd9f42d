"""The parameters of a request, from its query, JSON or form; bounded in size and time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import parse_qsl

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from npad.errors import InvalidInput
from npad.serve.limits import Limits, RequestRefused
from npad.validation import brief

MAX_FIELDS = 100  # of a form or query

JSON, FORM, MULTIPART = (
    "application/json",
    "application/x-www-form-urlencoded",
    "multipart/form-data",
)


async def read_body(request: Request, limit: int, seconds: float) -> bytes:
    """Return the body of a request.

    Raises:
        RequestRefused: it is larger than `limit` bytes, or takes longer than `seconds` to arrive.
    """
    too_large = RequestRefused(413, f"the body must have at most {limit:,} bytes")
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared[:20]) > limit:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise too_large
    except TimeoutError:
        raise RequestRefused(408, f"the body did not arrive within {seconds:g} s") from None
    except ClientDisconnect:
        raise RequestRefused(
            400, "the client closed the connection before the body's end"
        ) from None
    return bytes(body)


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
        raise RequestRefused(
            415, f"send {JSON} or {FORM}, not {brief(kind, 60) if kind else 'nothing'}"
        )
    body = await read_body(request, limits.body, limits.receive_seconds)
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidInput("the body must be UTF-8") from None
    if kind == FORM:
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


async def form_with_file(request: Request, limits: Limits) -> tuple[dict[str, str], bytes]:
    """Return the fields of a multipart form, and its file's content.

    Raises:
        RequestRefused: the content type is another one, or the body is too large or too slow.
        InvalidInput: the form is malformed, or has no field `file`.
    """
    if content_type(request) != MULTIPART:
        raise RequestRefused(415, f"send {MULTIPART} with a field `file`")
    seconds = limits.receive_seconds + limits.audio / 1_000_000
    body = await read_body(request, limits.audio, seconds)
    if not body.rstrip().endswith(b"--"):
        raise InvalidInput("the form is malformed: it ends early")

    async def chunks() -> AsyncGenerator[bytes, None]:
        yield body

    try:
        parser = MultiPartParser(request.headers, chunks(), max_files=1, max_fields=MAX_FIELDS)
        form = await parser.parse()
    except (MultiPartException, KeyError, ValueError) as error:
        message = getattr(error, "message", "its boundary is missing")
        raise InvalidInput(f"the form is malformed: {brief(str(message), 100)}") from None
    uploaded = form.get("file")
    if not isinstance(uploaded, UploadFile):
        raise InvalidInput("the form has no file; send the recording as the field `file`")
    content = await uploaded.read()
    fields = {name: value for name, value in form.items() if isinstance(value, str)}
    await form.close()
    return fields, content


def ensure_request_texts(name: str, value: Any, limits: Limits) -> list[str]:
    """Return the texts of a parameter: one, or a list of them.

    Raises:
        InvalidInput: there are none, too many, a text is too long, or it is no text.
    """
    if value is None:
        raise InvalidInput(f"{name} is missing: a text, or a list of texts")
    texts = value if isinstance(value, list) else [value]
    if not texts:
        raise InvalidInput(f"{name} must be a text, or a list of texts; it is empty")
    if len(texts) > limits.texts:
        raise InvalidInput(f"{name} must have at most {limits.texts} texts, not {len(texts)}")
    for text in texts:
        _ensure_request_text(name, text, limits)
    return texts


def one_text(name: str, value: Any, limits: Limits) -> str:
    """Return the text of a parameter that takes one."""
    if isinstance(value, list):
        raise InvalidInput(f"{name} must be one text, not a list")
    (text,) = ensure_request_texts(name, value, limits)
    return text


def ensure_not_blank(name: str, texts: list[str]) -> None:
    """Require that one of the texts is not blank."""
    if not any(text.strip() for text in texts):
        raise InvalidInput(f"{name} must not be empty")


def _ensure_request_text(name: str, text: Any, limits: Limits) -> None:
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
        raise InvalidInput(f"{name} holds half a surrogate pair, which is no text") from None
