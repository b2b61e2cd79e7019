"""Bare HTTP over asyncio: streams that can be watched event by event, and dropped at any moment."""

import asyncio
import json
import ssl


class Stream:
    """One POST and its answer, on a connection of its own."""

    def __init__(self, port: int, path: str, body: dict, request_headers: dict[str, str] | None = None,
                 context: ssl.SSLContext | None = None):
        self.port = port
        self.context = context
        self.path = path
        self.request_headers = request_headers or {}
        self.body = json.dumps(body).encode()
        self.status = 0
        self.headers: dict[str, str] = {}

    async def open(self) -> "Stream":
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=self.context)
        return self

    async def send(self, limit: int | None = None) -> None:
        """Sends the request, or only its first `limit` bytes."""
        more = "".join(f"{name}: {value}\r\n" for name, value in self.request_headers.items())
        head = (f"POST {self.path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{more}"
                f"content-length: {len(self.body)}\r\n\r\n").encode()
        self.writer.write((head + self.body)[:limit])
        await self.writer.drain()

    async def read_head(self) -> int:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        self.status = int(lines[0].split()[1])
        self.headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        return self.status

    async def read_body(self) -> bytes:
        if "content-length" in self.headers:
            return await self.reader.readexactly(int(self.headers["content-length"]))
        return b"".join([chunk async for chunk in self.chunks()])

    async def chunks(self):
        while True:
            size = int(await self.reader.readline(), 16)
            chunk = (await self.reader.readexactly(size + 2))[:-2]
            if size == 0:
                return
            yield chunk

    async def events(self):
        """The JSON of each event; comments are skipped."""
        text = b""
        async for chunk in self.chunks():
            text += chunk
            *whole, text = text.split(b"\n\n")
            for event in whole:
                if event == b"data: [DONE]" or event.startswith(b":"):
                    continue
                assert event.startswith(b"data: "), event
                yield json.loads(event[6:])
        assert text == b""

    def drop(self, rudely: bool = False) -> None:
        """Closes; rudely: with a reset."""
        if rudely:
            self.writer.transport.abort()
        else:
            self.writer.close()


async def stream_native(port: int, inputs: str, **parameters) -> list[dict]:
    """All events of one /generate_stream."""
    stream = await Stream(port, "/generate_stream", {"inputs": inputs, "parameters": parameters}).open()
    await stream.send()
    assert await stream.read_head() == 200
    events = [event async for event in stream.events()]
    stream.drop()
    return events
