"""Server-sent events from a model's thread to a client that may go away or read slowly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from starlette.types import Receive, Scope, Send

from npad.serve.model_thread import QueuedRequest

KEEP_ALIVE_SECONDS = 10.0
KEEP_ALIVE = b": keep-alive\n\n"
HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",
}


class SlowReader(Exception):
    """The client reads events more slowly than they are made."""


def encode_event(name: str, data: dict[str, Any]) -> bytes:
    """Return an event in the format of text/event-stream."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


class EventStream:
    """Events on their way from a model's thread to a client: an ASGI application.

    It ends after the request's last event, after `seconds`, or when the client goes, which cancels
    the request.

    Args:
        limit: bytes that may wait.
        seconds: the longest that the stream may take.
        explain: the line for an error of the request.

    Attributes:
        queued: makes the events; set before the stream is sent.
    """

    queued: QueuedRequest

    def __init__(self, limit: int, seconds: float, explain: Callable[[BaseException], str]) -> None:
        self.limit, self.seconds, self.explain = limit, seconds, explain
        self.headers: dict[str, str] = dict(HEADERS)
        self.status_code = 200
        self._unsent = 0
        self._loop = asyncio.get_running_loop()
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue()

    def emit(self, name: str, data: dict[str, Any]) -> None:
        """Add an event, from any thread."""
        if self._unsent > self.limit:
            raise SlowReader
        self._put(encode_event(name, data))

    def _put(self, chunk: bytes | None) -> None:
        """Add bytes, or None as the end, from any thread."""

        def put() -> None:
            self._unsent += len(chunk or b"")
            self._chunks.put_nowait(chunk)

        self._loop.call_soon_threadsafe(put)

    async def _get(self, seconds: float) -> bytes | None:
        """Return all bytes that wait, a comment after `seconds` without any, None at the end."""
        try:
            chunk = await asyncio.wait_for(self._chunks.get(), seconds)
        except TimeoutError:
            return KEEP_ALIVE
        if chunk is None:
            return None
        chunks = [chunk]
        while not self._chunks.empty():
            following = self._chunks.get_nowait()
            if following is None:
                self._chunks.put_nowait(None)
                break
            chunks.append(following)
        joined = b"".join(chunks)
        self._unsent -= len(joined)
        return joined

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name.encode(), value.encode()) for name, value in self.headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        gone = asyncio.create_task(wait_for_disconnect(receive))
        gone.add_done_callback(lambda _: self._put(None))
        self.queued.result.add_done_callback(lambda _: self._put(None))
        try:
            await self._send_all(send, gone)
        finally:
            self.queued.cancel()
            gone.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_all(self, send: Send, gone: asyncio.Task[None]) -> None:
        end = self._loop.time() + self.seconds
        while not gone.done():
            left = end - self._loop.time()
            if left <= 0:
                message = f"no answer within {self.seconds:g} s; ask for less"
                await self._send(send, encode_event("error", {"error": message}))
                return
            chunk = await self._get(min(KEEP_ALIVE_SECONDS, left))
            if chunk is None:
                break
            try:
                async with asyncio.timeout_at(end):
                    await self._send(send, chunk)
            except TimeoutError:  # in the middle of an event, which nothing can follow
                return
        result = self.queued.result
        if result.done() and not result.cancelled() and not gone.done():
            error = result.exception()
            if error is not None:
                await self._send(send, encode_event("error", {"error": self.explain(error)}))

    async def _send(self, send: Send, chunk: bytes) -> None:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
