"""What the fake hub and the fake S3 share: a threaded server that records requests, sends ranges and cuts connections."""

import re
import socket
import ssl
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass
class Seen:
    """A request that arrived."""

    method: str
    path: str
    headers: dict[str, str]  # names in lower case


@dataclass
class Answer:
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class Web:
    """Serves `answer(seen)` at `url`. `faults` are what a strict server would have refused in clients: none, at the end."""

    def __init__(self, certificate: Path | None = None):
        self.seen: list[Seen] = []
        self.faults: list[str] = []
        self.cuts: list[int] = []  # bytes after which the next bodies end, with their connections
        self.planned: list[Answer] = []  # for the next requests, in place of what they ask for
        self.hanging = threading.Event()  # while set, bodies do not end
        web = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                seen = Seen(self.command, self.path, {name.lower(): value for name, value in self.headers.items()})
                web.seen.append(seen)
                answer = web.planned.pop(0) if web.planned else web.answer(seen)
                self.send_response_only(answer.status)
                for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "HEAD":
                    return
                if web.hanging.is_set():
                    self.wfile.write(answer.body[:1])
                    while web.hanging.is_set() and self.client_is_there():
                        web.wait_a_little()
                    return
                if web.cuts and answer.status < 300:
                    self.wfile.write(answer.body[: web.cuts.pop(0)])
                    self.wfile.flush()
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                    return
                self.wfile.write(answer.body)

            do_HEAD = do_GET

            def client_is_there(self) -> bool:
                self.connection.settimeout(0.05)
                try:
                    return self.connection.recv(1) != b""
                except TimeoutError:
                    return True
                except OSError:
                    return False

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass  # clients may leave

        self.server = Server(("127.0.0.1", 0), Handler)
        scheme = "http"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            scheme = "https"
        self.host = f"127.0.0.1:{self.server.server_address[1]}"
        self.url = f"{scheme}://{self.host}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, seen: Seen) -> Answer:
        raise NotImplementedError

    def wait_a_little(self) -> None:
        threading.Event().wait(0.02)

    def fault(self, text: str) -> None:
        self.faults.append(text)

    def count(self, method: str, part: str = "") -> int:
        return sum(seen.method == method and part in seen.path for seen in self.seen)

    def close(self) -> None:
        self.hanging.clear()
        self.server.shutdown()
        self.server.server_close()


def ranged(body: bytes, headers: dict[str, str], seen: Seen) -> Answer:
    """200, or the range that was asked for."""
    wanted = seen.headers.get("range")
    if wanted is None or seen.method == "HEAD":
        return Answer(200, headers, body)
    begin = int(re.fullmatch(r"bytes=(\d+)-", wanted).group(1))
    if begin >= len(body):
        return Answer(416, {**headers, "Content-Range": f"bytes */{len(body)}"})
    return Answer(206, {**headers, "Content-Range": f"bytes {begin}-{len(body) - 1}/{len(body)}"}, body[begin:])
