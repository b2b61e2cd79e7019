"""What the server makes of a GPU: answers that decode together, beside what a decode step of the engine alone takes in the
same run (`shoal bench`). The difference is prompts, and the host's work that no step hides. Needs Python and numpy.

    tools/gpu_serving.py --shoal build-cuda/shoal [--shoal another] [--config falcon-7b] [--in-flight 1,32,64]
"""

from __future__ import annotations

import argparse
import concurrent.futures
import http.client
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench" / "serving"))

from dummies import write_model  # noqa: E402

PROMPT = " ".join(f"w{i}" for i in range(256))
NEW_TOKENS = 256
REPEATS = 3


class Server:
    def __init__(self, shoal: str, model: Path):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        command = [shoal, "serve", "--model-id", str(model), "--load-format", "dummy", "--device", "cuda", "--hostname",
                   "127.0.0.1", "--port", str(self.port)]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, env=os.environ)

    def __enter__(self) -> Server:
        for _ in range(1200):
            try:
                self.request("GET", "/health")
                return self
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.1)
        self.process.kill()
        sys.exit(f"no server:\n{Path(self.log.name).read_text()}")

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(30)

    def request(self, method: str, path: str, body: dict | None = None) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        if answer.status != 200:
            sys.exit(f"{path}: {answer.status} {text[:300]}")
        return text

    def answer(self, _: int) -> None:
        self.request("POST", "/generate", {"inputs": PROMPT, "parameters": {
            "max_new_tokens": NEW_TOKENS, "ignore_eos_token": True}})

    def metric(self, name: str) -> float:
        found = re.search(rf"^shoal_{name} (\S+)$", self.request("GET", "/metrics"), re.MULTILINE)
        return float(found.group(1)) if found else 0.0


def engine_step_s(shoal: str, config: Path, batch: int) -> float:
    """The median decode step of the engine at the middle of such answers."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [shoal, "bench", "--device", "cuda", "--load-format", "dummy", "--config", str(config), "--context",
                   str(256 + NEW_TOKENS // 2), "--batch", str(batch), "--prompt-len", "0", "--new-tokens", "40",
                   "--repeat", "3", "--json", file.name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.loads(Path(file.name).read_text())["decode"][0]["median_s"]


def measure(server: Server, in_flight: int) -> tuple[float, float]:
    """Seconds from one token of every answer to the next, prompts included, and the share of steps that were started ahead."""
    seconds = []
    ahead, steps = server.metric("steps_ahead"), server.metric("steps")
    for _ in range(REPEATS + 1):
        with concurrent.futures.ThreadPoolExecutor(in_flight) as pool:
            begin = time.perf_counter()
            list(pool.map(server.answer, range(in_flight)))
            seconds.append((time.perf_counter() - begin) / NEW_TOKENS)
    share = (server.metric("steps_ahead") - ahead) / (server.metric("steps") - steps)
    return statistics.median(seconds[1:]), share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shoal", action="append", required=True)
    parser.add_argument("--config", default="falcon-7b")
    parser.add_argument("--in-flight", default="1,32,64")
    options = parser.parse_args()
    config = ROOT / "bench" / "configs" / "full" / f"{options.config}.json"
    batches = [int(each) for each in options.in_flight.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        write_model(model, config)
        print("| server | in flight | a token of each, ms | engine alone, ms | tokens/s | steps started ahead |")
        print("|---|---|---|---|---|---|")
        alone = {batch: engine_step_s(options.shoal[0], config, batch) for batch in batches}
        for shoal in options.shoal:
            with Server(shoal, model) as server:
                for batch in batches:
                    step_s, share = measure(server, batch)
                    print(f"| {Path(shoal).name} | {batch} | {1e3 * step_s:.3f} | {1e3 * alone[batch]:.3f} | "
                          f"{batch / step_s:.0f} | {100 * share:.0f} % |", flush=True)


if __name__ == "__main__":
    main()
