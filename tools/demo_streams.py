"""What the demos share: a server, streams that start at one moment, and their answers side by side as they come."""

import collections.abc
import dataclasses
import http.client
import json
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 20
MAX_TOKENS = 48
FEWEST_COLUMNS = 30  # of an answer on a terminal


@dataclasses.dataclass
class Stream:
    """One request and its answer."""

    title: str
    path: str
    body: dict
    text_of: collections.abc.Callable[[dict], str]  # what an event adds to the answer
    is_right: collections.abc.Callable[[str], bool]
    expected: str  # in words
    answer: str = ""
    num_tokens: int = 0
    first_token_s: float = 0.0
    end_s: float = 0.0
    error: str = ""
    done: bool = False

    def tokens_per_s(self) -> float:
        span = self.end_s - self.first_token_s
        return (self.num_tokens - 1) / span if span > 0 else 0.0

    def read_event(self, event: dict) -> None:
        if "error" in event:
            raise RuntimeError(str(event["error"]))
        self.end_s = time.monotonic()
        text = self.text_of(event)
        if text and self.num_tokens == 0:
            self.first_token_s = self.end_s
        self.answer += text
        self.num_tokens += 1 if text else 0


class Server:
    def __init__(self, binary: pathlib.Path, model: pathlib.Path, folder: pathlib.Path, *flags: str):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = folder / "server.log"
        with self.log.open("wb") as log:
            command = [
                str(binary),
                "serve",
                "--model-id",
                str(model),
                "--hostname",
                "127.0.0.1",
                "--port",
                str(self.port),
                *flags,
            ]
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)

    def request(self, method: str, path: str, body: dict | None = None) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_TIMEOUT_S)
        connection.request(method, path, json.dumps(body) if body else None, {"content-type": "application/json"})
        return connection.getresponse()

    def prepare(self, path: str, body: dict) -> tuple[http.client.HTTPConnection, bytes]:
        """An open request, and its last byte, which is not sent yet."""
        data = json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_TIMEOUT_S)
        connection.putrequest("POST", path)
        connection.putheader("content-type", "application/json")
        connection.putheader("content-length", str(len(data)))
        connection.endheaders(data[:-1])
        return connection, data[-1:]

    def wait_until_healthy(self) -> None:
        end = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end:
            if self.process.poll() is not None:
                self.fail(f"the server ended with status {self.process.returncode}")
            try:
                if self.request("GET", "/health").status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        self.fail(f"not healthy after {START_TIMEOUT_S} s")

    def metrics(self) -> dict[str, float]:
        lines = self.request("GET", "/metrics").read().decode().splitlines()
        values = (line.rpartition(" ") for line in lines if line[:1] not in ("", "#"))
        return {name: float(value) for name, _, value in values}

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.fail(f"still running {STOP_TIMEOUT_S} s after SIGTERM")

    def fail(self, cause: str) -> None:
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
        raise SystemExit(f"demo: {cause}\n{tail}")


def run_stream(connection: http.client.HTTPConnection, stream: Stream) -> None:
    try:
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"HTTP {response.status}: {response.read().decode(errors='replace')[:200]}")
        for line in response:
            if line.startswith(b"data:") and line.strip() != b"data: [DONE]":
                stream.read_event(json.loads(line[5:]))
    except (OSError, RuntimeError, ValueError, http.client.HTTPException) as error:
        stream.error = str(error)
    stream.done = True


def grid(streams: list[Stream], width: int) -> list[str]:
    """The answers so far, side by side, as many to a row as fit; the number of lines depends on the width alone."""
    per_row = max(1, min(len(streams), width // FEWEST_COLUMNS))
    each = width // per_row - 2
    lines = []
    for first in range(0, len(streams), per_row):
        cells = [cell(stream, each) for stream in streams[first : first + per_row]]
        lines += ["  ".join(part.ljust(each) for part in row) for row in zip(*cells, strict=True)] + [""]
    return lines


def cell(stream: Stream, width: int) -> list[str]:
    height = MAX_TOKENS * 6 // width + 2  # a token is about five letters and a space
    title = textwrap.wrap(stream.title, width)[:2]
    answer = textwrap.wrap(" ".join(stream.answer.split()), width)[:height]
    state = f"{stream.num_tokens} tokens" + (f", {stream.tokens_per_s():.1f}/s" if stream.done else "")
    return title + [""] * (2 - len(title)) + ["-" * width] + answer + [""] * (height - len(answer)) + [state]


def show_live(streams: list[Stream], threads: list[threading.Thread]) -> None:
    drawn = 0
    while True:
        finished = not any(thread.is_alive() for thread in threads)
        lines = grid(streams, shutil.get_terminal_size((100, 24)).columns)
        sys.stdout.write((f"\x1b[{drawn}A" if drawn else "") + "".join(f"\x1b[2K{line}\n" for line in lines))
        sys.stdout.flush()
        drawn = len(lines)
        if finished:
            return
        time.sleep(0.05)


def show_lines(streams: list[Stream], threads: list[threading.Thread]) -> None:
    for stream, thread in zip(streams, threads, strict=True):
        thread.join()
        answer = " ".join(stream.answer.split())
        rate = f"{stream.num_tokens} tokens, {stream.tokens_per_s():.1f} tokens/s"
        print(f"  {stream.title}\n    {answer}\n    {rate}", flush=True)


def run_streams(server: Server, streams: list[Stream]) -> float:
    """Seconds from the first request to the last token. Answers are short: all requests end within microseconds."""
    prepared = [server.prepare(one.path, one.body) for one in streams]
    threads = [
        threading.Thread(target=run_stream, args=(connection, one), daemon=True)
        for (connection, _), one in zip(prepared, streams, strict=True)
    ]
    began = time.monotonic()
    for connection, last_byte in prepared:
        connection.send(last_byte)
    for thread in threads:
        thread.start()
    size = shutil.get_terminal_size((100, 24))
    fits = sys.stdout.isatty() and len(grid(streams, size.columns)) < size.lines
    (show_live if fits else show_lines)(streams, threads)
    return max(stream.end_s for stream in streams) - began


@dataclasses.dataclass
class Round:
    """Streams that start at once, and what their steps must serve on average for them to have overlapped."""

    heading: str
    streams: list[Stream]
    fewest_tokens_a_step: float


def run_round(server: Server, one: Round) -> list[str]:
    """Runs the streams at once, shows them and what they shared; returns what went wrong."""
    streams = one.streams
    before = server.metrics()
    span_s = run_streams(server, streams)
    after = server.metrics()
    steps = after["shoal_steps"] - before["shoal_steps"]
    tokens = after["shoal_generated_tokens"] - before["shoal_generated_tokens"]
    tokens_a_step = tokens / steps if steps else 0.0
    print(
        f"\nall: {tokens:.0f} tokens in {span_s:.2f} s, {tokens / max(span_s, 1e-9):.1f} tokens/s; {steps:.0f} model "
        f"steps, {tokens_a_step:.1f} tokens a step on average\n",
        flush=True,
    )
    found = [f"'{stream.title}' failed: {stream.error}" for stream in streams if stream.error]
    found += [
        f"'{stream.title}': expected {stream.expected}, got '{stream.answer}'"
        for stream in streams
        if not stream.error and not stream.is_right(stream.answer)
    ]
    if tokens_a_step < one.fewest_tokens_a_step:
        found.append(f"the streams did not share their steps: {tokens_a_step:.2f} tokens a step")
    return found


def run_server(binary: pathlib.Path, model: pathlib.Path, rounds: list[Round], *flags: str) -> list[str]:
    """Serves `model`, runs each round under its heading, stops; returns what went wrong."""
    found = []
    with tempfile.TemporaryDirectory(prefix="shoal-demo-") as folder:
        began = time.monotonic()
        server = Server(binary, model, pathlib.Path(folder), *flags)
        try:
            server.wait_until_healthy()
            print(f"=== {model.name}: ready after {time.monotonic() - began:.1f} s\n", flush=True)
            for one in rounds:
                print(f"{one.heading}\n", flush=True)
                found += run_round(server, one)
            stop_status = server.stop()
        finally:
            if server.process.poll() is None:
                server.process.kill()
    if stop_status != 0:
        found.append(f"the server ended with status {stop_status} on SIGTERM")
    return found


def report(found: list[str], success: str) -> int:
    for fault in found:
        print(f"demo: {fault}", file=sys.stderr)
    print("demo: failed" if found else f"demo: {success}")
    return 1 if found else 0
