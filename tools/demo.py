"""The demo behind `make demo`: a real small model, several chats streamed at once, one batch.

Starts `build/shoal serve`, sends every question at the same moment, shows the answers side by side as they come (plain
lines where the output is no terminal) with tokens/s of each stream and of all, and stops the server. Fails unless the
answers are right and the streams shared their steps.
"""

import argparse
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
FEWEST_TOKENS_A_STEP = 2.0  # the streams overlapped: one step served at least this many on average


@dataclasses.dataclass
class Chat:
    question: str
    expected: tuple[str, ...]  # the answer holds one of these
    answer: str = ""
    num_tokens: int = 0
    first_token_s: float = 0.0
    end_s: float = 0.0
    error: str = ""
    done: bool = False

    def tokens_per_s(self) -> float:
        span = self.end_s - self.first_token_s
        return (self.num_tokens - 1) / span if span > 0 else 0.0

    def is_right(self) -> bool:
        return any(word in self.answer.lower() for word in self.expected)


def questions() -> list[Chat]:
    return [
        Chat("What is the capital of France?", ("paris",)),
        Chat("What is 2 + 2?", ("4", "four")),
        Chat("What colour is the sky on a clear day?", ("blue",)),
        Chat("What is the opposite of hot?", ("cold",)),
        Chat("Give me three tips for staying healthy.", ("water", "diet", "sleep", "exercise")),
    ]


class Server:
    def __init__(self, binary: pathlib.Path, model: pathlib.Path, folder: pathlib.Path):
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
            ]
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)

    def request(self, method: str, path: str, body: dict | None = None) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_TIMEOUT_S)
        connection.request(method, path, json.dumps(body) if body else None, {"content-type": "application/json"})
        return connection.getresponse()

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


def stream_chat(server: Server, chat: Chat, start: threading.Barrier) -> None:
    body = {
        "model": "",
        "messages": [{"role": "user", "content": chat.question}],
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
        "stream": True,
    }
    try:
        start.wait()
        response = server.request("POST", "/v1/chat/completions", body)
        if response.status != 200:
            raise RuntimeError(f"HTTP {response.status}: {response.read().decode(errors='replace')[:200]}")
        for line in response:
            if line.startswith(b"data:") and line.strip() != b"data: [DONE]":
                read_event(chat, json.loads(line[5:]))
    except (OSError, RuntimeError, ValueError, http.client.HTTPException) as error:
        chat.error = str(error)
    chat.done = True


def read_event(chat: Chat, event: dict) -> None:
    if "error" in event:
        raise RuntimeError(str(event["error"]))
    chat.end_s = time.monotonic()
    for choice in event.get("choices", []):
        text = choice.get("delta", {}).get("content") or ""
        if text and chat.num_tokens == 0:
            chat.first_token_s = chat.end_s
        chat.answer += text
        chat.num_tokens += 1 if text else 0
    usage = event.get("usage")
    if usage and usage["completion_tokens"]:
        chat.num_tokens = usage["completion_tokens"]


def grid(chats: list[Chat], width: int) -> list[str]:
    """The answers so far, side by side, as many to a row as fit; the number of lines depends on the width alone."""
    per_row = max(1, min(len(chats), width // FEWEST_COLUMNS))
    each = width // per_row - 2
    lines = []
    for first in range(0, len(chats), per_row):
        cells = [cell(chat, each) for chat in chats[first : first + per_row]]
        lines += ["  ".join(part.ljust(each) for part in row) for row in zip(*cells, strict=True)] + [""]
    return lines


def cell(chat: Chat, width: int) -> list[str]:
    height = MAX_TOKENS * 6 // width + 2  # a token is about five letters and a space
    question = textwrap.wrap(chat.question, width)[:2]
    answer = textwrap.wrap(" ".join(chat.answer.split()), width)[:height]
    state = f"{chat.num_tokens} tokens" + (f", {chat.tokens_per_s():.1f}/s" if chat.done else "")
    return question + [""] * (2 - len(question)) + ["-" * width] + answer + [""] * (height - len(answer)) + [state]


def show_live(chats: list[Chat], threads: list[threading.Thread]) -> None:
    drawn = 0
    while True:
        finished = not any(thread.is_alive() for thread in threads)
        lines = grid(chats, shutil.get_terminal_size((100, 24)).columns)
        sys.stdout.write((f"\x1b[{drawn}A" if drawn else "") + "".join(f"\x1b[2K{line}\n" for line in lines))
        sys.stdout.flush()
        drawn = len(lines)
        if finished:
            return
        time.sleep(0.05)


def show_lines(chats: list[Chat], threads: list[threading.Thread]) -> None:
    for chat, thread in zip(chats, threads, strict=True):
        thread.join()
        answer = " ".join(chat.answer.split())
        rate = f"{chat.num_tokens} tokens, {chat.tokens_per_s():.1f} tokens/s"
        print(f"  {chat.question}\n    {answer}\n    {rate}", flush=True)


def run_chats(server: Server, chats: list[Chat]) -> float:
    """Seconds from the first question to the last token."""
    barrier = threading.Barrier(len(chats) + 1)
    threads = [threading.Thread(target=stream_chat, args=(server, chat, barrier), daemon=True) for chat in chats]
    for thread in threads:
        thread.start()
    barrier.wait()
    began = time.monotonic()
    size = shutil.get_terminal_size((100, 24))
    fits = sys.stdout.isatty() and len(grid(chats, size.columns)) < size.lines
    (show_live if fits else show_lines)(chats, threads)
    return max(chat.end_s for chat in chats) - began


def faults(chats: list[Chat], tokens_a_step: float, stop_status: int) -> list[str]:
    found = [f"'{chat.question}' failed: {chat.error}" for chat in chats if chat.error]
    found += [
        f"'{chat.question}': expected {' or '.join(chat.expected)}, got '{chat.answer}'"
        for chat in chats
        if not chat.error and not chat.is_right()
    ]
    if tokens_a_step < FEWEST_TOKENS_A_STEP:
        found.append(f"the streams did not share their steps: {tokens_a_step:.2f} tokens a step")
    if stop_status != 0:
        found.append(f"the server ended with status {stop_status} on SIGTERM")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path, help="folder of the model (tools/fetch_smollm2.py prints it)")
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build/shoal")
    arguments = parser.parse_args()
    chats = questions()
    with tempfile.TemporaryDirectory(prefix="shoal-demo-") as folder:
        began = time.monotonic()
        server = Server(arguments.binary, arguments.model, pathlib.Path(folder))
        try:
            server.wait_until_healthy()
            print(
                f"{arguments.model.name}: ready after {time.monotonic() - began:.1f} s; {len(chats)} chats at once\n",
                flush=True,
            )
            before = server.metrics()
            span_s = run_chats(server, chats)
            after = server.metrics()
            stop_status = server.stop()
        finally:
            if server.process.poll() is None:
                server.process.kill()
    steps = after["shoal_steps"] - before["shoal_steps"]
    tokens = after["shoal_generated_tokens"] - before["shoal_generated_tokens"]
    tokens_a_step = tokens / steps if steps else 0.0
    print(
        f"\nall: {tokens:.0f} tokens in {span_s:.2f} s, {tokens / span_s:.1f} tokens/s; {steps:.0f} model steps, "
        f"{tokens_a_step:.1f} tokens a step on average"
    )
    found = faults(chats, tokens_a_step, stop_status)
    for fault in found:
        print(f"demo: {fault}", file=sys.stderr)
    print("demo: failed" if found else "demo: every answer is right, and the chats shared one batch")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
