"""Holds connections to a server open: `held.py PORT IDLE STREAMS`, until its standard input ends.

IDLE connections are kept alive, with a request now and then; STREAMS are answers that are read a byte at a time. Says
"held" once all are open, and at the end in JSON how many still are.
"""

import asyncio
import json
import socket
import sys

PING_S = 20.0  # between requests of an idle connection; the server closes it after 75
READ_S = 1.0  # between two bytes of a slow reader
PING = b"GET /ping HTTP/1.1\r\nhost: h\r\n\r\n"
BODY = json.dumps({"inputs": "a b c d", "parameters": {"max_new_tokens": 3}}).encode()
STREAM = b"POST /generate_stream HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
    len(BODY), BODY)


class Held:
    """One connection."""

    def __init__(self, port: int, ping: bool):
        self.port = port
        self.ping = ping
        self.started = asyncio.Event()
        self.is_open = False

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        with socket.socket() as connection:
            connection.setblocking(False)
            if not self.ping:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # as little as there can be
            await loop.sock_connect(connection, ("127.0.0.1", self.port))
            self.is_open = True
            if not self.ping:
                await loop.sock_sendall(connection, STREAM)
            while self.is_open:
                if self.ping:
                    await loop.sock_sendall(connection, PING)
                got = await loop.sock_recv(connection, 4096 if self.ping else 1)
                self.is_open = bool(got)
                self.started.set()
                await asyncio.sleep(PING_S if self.ping else READ_S)


async def main(port: int, num_idle: int, num_streams: int) -> None:
    held = [Held(port, ping=each < num_idle) for each in range(num_idle + num_streams)]
    tasks = [asyncio.create_task(each.run()) for each in held]
    for each in held:
        await each.started.wait()
    print("held", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    print(json.dumps({"idle": sum(each.is_open for each in held[:num_idle]),
                      "streams": sum(each.is_open for each in held[num_idle:])}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
