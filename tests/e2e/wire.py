"""A bare connection, for what no HTTP library would send."""

import http.client
import json
import socket
import ssl
import time


class Answer:
    def __init__(self, response: http.client.HTTPResponse):
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read()

    @property
    def json(self) -> dict:
        return json.loads(self.body)


class Wire:
    def __init__(self, port: int, *, context: ssl.SSLContext | None = None, receive_bytes: int | None = None):
        self.socket = socket.socket()
        if receive_bytes is not None:  # before connecting, or the window is larger already
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(60)
        self.socket.connect(("127.0.0.1", port))
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_hostname="127.0.0.1", suppress_ragged_eofs=False)

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def drip(self, data: bytes, pause_s: float) -> None:
        """Byte by byte, until the server has had enough."""
        try:
            for byte in data:
                self.socket.sendall(bytes([byte]))
                time.sleep(pause_s)
        except OSError:
            pass

    def answer(self, method: str = "GET") -> Answer:
        """The only one: what follows it is lost."""
        response = http.client.HTTPResponse(self.socket, method=method)
        response.begin()
        return Answer(response)

    def rest(self) -> bytes:
        """All that comes until the server closes."""
        received = b""
        while chunk := self.socket.recv(65536):
            received += chunk
        return received


def post_head(path: str, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: x", "content-type: application/json", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def eventually(condition, seconds: float = 60):
    deadline = time.monotonic() + seconds
    while not (outcome := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)
    return outcome
