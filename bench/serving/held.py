"""Holds connections to a server open: `held.py PORT IDLE STREAMS`, until its standard input ends.

IDLE connections are kept alive, with a request now and then; STREAMS are answers that are read a byte at a time. Says
"held" once all are open, and at the end in JSON how many still are. One plain loop without threads or callbacks: what
it takes of the processors is taken from the server that is measured.
"""

import json
import select
import socket
import sys
import time

PING_S = 20.0  # between requests of an idle connection; the server closes it after 75
READ_S = 1.0  # between two bytes of a slow reader
TICK_S = 0.05  # those that are due within one are served together
PATIENCE_S = 600.0
PING = b"GET /ping HTTP/1.1\r\nhost: h\r\n\r\n"
BODY = json.dumps({"inputs": "a b c d", "parameters": {"max_new_tokens": 3}}).encode()
STREAM = b"POST /generate_stream HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
    len(BODY), BODY)


class Held:
    """One connection."""

    def __init__(self, port: int, ping: bool):
        self.request = PING if ping else STREAM
        self.ping = ping
        self.is_open = True
        self.connection = socket.socket()
        if not ping:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # as little as there can be
        self.connection.connect(("127.0.0.1", port))

    def send(self) -> None:
        self.connection.sendall(self.request)

    def read(self) -> None:
        """What is there, or one byte of it."""
        try:
            self.is_open = bool(self.connection.recv(4096 if self.ping else 1, socket.MSG_DONTWAIT))
        except BlockingIOError:
            pass  # nothing came since
        except ConnectionError:
            self.is_open = False

    def serve(self) -> None:
        self.read()
        if self.ping and self.is_open:
            self.send()


def serve_in_turn(group: list[Held], begin: int, end: int) -> None:
    """Those of the group whose turns are from `begin` on, below `end`: spread, as clients are who know nothing of one
    another."""
    for turn in range(begin, end):
        each = group[turn % len(group)]
        if each.is_open:
            each.serve()


def main(port: int, num_idle: int, num_streams: int) -> None:
    idle = [Held(port, ping=True) for _ in range(num_idle)]
    streams = [Held(port, ping=False) for _ in range(num_streams)]
    for each in idle + streams:
        each.send()
    for each in idle + streams:
        each.connection.settimeout(PATIENCE_S)
        each.is_open = bool(each.connection.recv(1, socket.MSG_PEEK))  # its answer has begun
    print("held", flush=True)
    began = time.monotonic()
    turns = [0, 0]
    while not select.select([sys.stdin], [], [], TICK_S)[0]:
        for group, (members, period_s) in enumerate(((idle, PING_S), (streams, READ_S))):
            due = int((time.monotonic() - began) / period_s * len(members))
            serve_in_turn(members, turns[group], due)
            turns[group] = due
    print(json.dumps({"idle": sum(each.is_open for each in idle), "streams": sum(each.is_open for each in streams)}),
          flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
