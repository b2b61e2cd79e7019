"""A lean HTTP client for streams: it stamps the time of each token and leaves all parsing for later.

It shares the machine with the server it measures, so whatever it computes during a run is taken from the server.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json

from traces import Planned

EVENT_END = b"\n\n"
CUT_OFF = "cut off at the end of the run"


@dataclasses.dataclass(slots=True)
class Outcome:
    """What became of one request. Times are those of the event loop's clock, in seconds."""

    planned: Planned
    due: float  # when it had to be sent: all latencies count from here
    message: bytes = b""
    sent: float = 0.0
    event_times: list[float] = dataclasses.field(default_factory=list)
    end: float = 0.0
    status: int = 0
    body: bytearray = dataclasses.field(default_factory=bytearray)
    error: str = ""
    token_ids: list[int] = dataclasses.field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.error

    def check(self) -> None:
        """Reads the answer; one that is not what was asked for is an error. To be called once, after the run."""
        if self.error:
            return
        if self.end == 0.0:
            self.error = CUT_OFF
            return
        if self.status != 200:
            self.error = f"status {self.status}"
            return
        details: dict = {}
        for event in bytes(self.body).split(EVENT_END):
            if not event.startswith(b"data: {"):
                continue
            fields = json.loads(event[6:])
            if "token" not in fields:
                self.error = str(fields.get("error", "an event without a token"))
                return
            self.token_ids.append(fields["token"]["id"])
            details = fields.get("details") or details
        prompt_tokens = details.get("prompt_tokens")
        if prompt_tokens != self.planned.prompt_tokens:
            self.error = f"{prompt_tokens} prompt tokens, expected {self.planned.prompt_tokens}"
        elif len(self.token_ids) != self.planned.output_tokens or len(self.event_times) != len(self.token_ids):
            self.error = f"{len(self.token_ids)} of {self.planned.output_tokens} tokens"


class Connection(asyncio.Protocol):
    """One keep-alive connection, one request at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.outcome: Outcome | None = None
        self.done: asyncio.Future | None = None
        self.buffer = bytearray()
        self.in_body = False
        self.length: int | None = None  # of a body that is not chunked
        self.reusable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.reusable = False
        if self.done is not None and not self.done.done():
            self.outcome.error = self.outcome.error or "the connection was lost"
            self._finish()

    async def request(self, message: bytes, outcome: Outcome, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        self.outcome, self.done = outcome, loop.create_future()
        self.in_body, self.length = False, None
        outcome.sent = loop.time()
        self.transport.write(message)
        try:
            await asyncio.wait_for(self.done, timeout_s)
        except (TimeoutError, asyncio.TimeoutError):
            outcome.error, outcome.end = f"no whole answer within {timeout_s:g} s", loop.time()
            self.abort()
        except asyncio.CancelledError:
            outcome.error, outcome.end = CUT_OFF, loop.time()
            self.abort()
            raise

    def abort(self) -> None:
        self.reusable = False
        self.done = None
        self.transport.abort()

    def _finish(self) -> None:
        self.outcome.end = asyncio.get_running_loop().time()
        if not self.done.done():
            self.done.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self.done is None or self.done.done():
            return
        self.buffer += data
        if not self.in_body and not self._read_head():
            return
        done = self._read_chunks() if self.length is None else self._read_plain()
        if done:
            self._finish()

    def _read_head(self) -> bool:
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        lines = self.buffer[:end].decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:])
        self.outcome.status = int(lines[0].split()[1])
        self.length = None if "chunked" in headers.get("transfer-encoding", "") else int(headers["content-length"])
        self.reusable = headers.get("connection", "") != "close"
        del self.buffer[: end + 4]
        self.in_body = True
        return True

    def _read_plain(self) -> bool:
        taken = self.buffer[: self.length - len(self.outcome.body)]
        self.outcome.body += taken
        del self.buffer[: len(taken)]
        return len(self.outcome.body) == self.length

    def _read_chunks(self) -> bool:
        now = asyncio.get_running_loop().time()
        while (line_end := self.buffer.find(b"\r\n")) >= 0:
            size = int(self.buffer[:line_end], 16)
            if len(self.buffer) < line_end + 4 + size:
                return False
            chunk = self.buffer[line_end + 2 : line_end + 2 + size]
            del self.buffer[: line_end + 4 + size]
            if size == 0:
                return True
            self.outcome.body += chunk
            # The server writes whole events. Comments, which keep a silent stream open, are no tokens.
            events = sum(event.startswith(b"data: ") for event in chunk.split(EVENT_END))
            self.outcome.event_times.extend([now] * events)
        return False


class Pool:
    """Connections to one server, as many as there are requests at once."""

    def __init__(self, port: int, timeout_s: float):
        self.port = port
        self.timeout_s = timeout_s
        self.idle: list[Connection] = []

    async def send(self, message: bytes, outcome: Outcome) -> None:
        connection = await self._take(outcome)
        if connection is None:
            return
        await connection.request(message, outcome, self.timeout_s)
        if connection.reusable:
            self.idle.append(connection)
        else:
            connection.transport.abort()

    async def _take(self, outcome: Outcome) -> Connection | None:
        while self.idle:
            connection = self.idle.pop()
            if connection.reusable:
                return connection
        loop = asyncio.get_running_loop()
        try:
            return (await loop.create_connection(Connection, "127.0.0.1", self.port))[1]
        except OSError as error:
            outcome.error, outcome.end = f"cannot connect: {error}", loop.time()
            return None

    def close(self) -> None:
        for connection in self.idle:
            connection.transport.abort()
        self.idle.clear()


def message_of(planned: Planned, index: int, adapter_name: str | None) -> bytes:
    """The bytes of a POST /generate_stream whose prompt is `prompt_tokens` words of the dummy's tokenizer."""
    # No two prompts share a beginning, so that a prefix cache, where one is on, finds nothing.
    words = [3 + (index * 7919 + place * 104729) % 32000 for place in range(planned.prompt_tokens)]
    parameters = {"max_new_tokens": planned.output_tokens, "ignore_eos_token": True, "details": True}
    if adapter_name is not None:
        parameters["adapter_id"] = adapter_name
    body = json.dumps({"inputs": " ".join(f"w{word}" for word in words), "parameters": parameters}).encode()
    tenant = f"x-shoal-tenant: {planned.tenant}\r\n" if planned.tenant else ""
    head = (f"POST /generate_stream HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{tenant}"
            f"content-length: {len(body)}\r\n\r\n")
    return head.encode() + body
