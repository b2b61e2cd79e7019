"""The server on a GPU under pressure, against the server on the CPU at rest: the small trained models in float32, with
a prefix cache of too few blocks, preemptions and adapters that are exchanged. Needs nothing but Python.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FAMILIES = ("solar", "falcon", "santacoder", "cohere")
IN_FLIGHT, ROUNDS, NEW_TOKENS, CACHE_BLOCKS = 16, 2, 60, 40
LOGPROB_TOLERANCE = 2e-3
# Among few tokens: in the long tail of a vocabulary a draw between two tokens hangs on the last bits of the logits.
SAMPLED = {"do_sample": True, "top_k": 10, "repetition_penalty": 1.2}
AT_LEAST = 10  # of each kind of pressure


class Server:
    def __init__(self, binary: str, model: Path, *flags: str):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        command = [binary, "serve", "--model-id", str(model), "--adapter-dir", str(model / "adapters"), "--hostname",
                   "127.0.0.1", "--port", str(port), "--dtype", "float32", *flags]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log,
                                        env={**os.environ, "SHOAL_BLOCK_ORDER": "shuffled"})

    def __enter__(self) -> Server:
        for _ in range(600):
            try:
                self.get("/health")
                return self
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.1)
        self.process.kill()
        sys.exit(f"no server:\n{Path(self.log.name).read_text()}")

    def __exit__(self, *_) -> None:
        self.process.terminate()
        self.process.wait(30)

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return answer.read().decode()

    def metric(self, name: str) -> float:
        found = re.search(rf"^shoal_{re.escape(name)} (\S+)$", self.get("/metrics"), re.MULTILINE)
        if found is None:
            sys.exit(f"no metric shoal_{name}")
        return float(found.group(1))

    def tokens(self, job: tuple[str, dict]) -> list[dict]:
        body = json.dumps({"inputs": job[0], "parameters": {"details": True, **job[1]}}).encode()
        request = urllib.request.Request(self.url + "/generate", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["details"]["tokens"]


def jobs_of(model: Path) -> list[tuple[str, dict]]:
    """Two beginnings and twelve ends, each under the base model and every adapter; a third of them sampled."""
    prompts = json.loads((model / "reference" / "prompts.json").read_text())
    runs = sorted(prompts)
    beginnings = [" ".join(prompts[run][:4]) for run in runs[1:3]]
    ends = [prompt for prompt in prompts["base"] + prompts[runs[1]] if len(prompt) < 200]
    jobs = []
    for i in range(12):
        for run in runs:
            adapter = {} if run == "base" else {"adapter_id": run}
            sampled = SAMPLED | {"seed": i} if i % 3 == 2 else {}
            jobs.append((f"{beginnings[i % 2]} {ends[i]}",
                         {"max_new_tokens": NEW_TOKENS, "ignore_eos_token": True, **adapter, **sampled}))
    return jobs


def cache_bytes(model: Path) -> int:
    config = json.loads((model / "config.json").read_text())
    heads = config.get("num_attention_heads") or config["n_head"]
    hidden = config.get("hidden_size") or config["n_embd"]
    layers = config.get("num_hidden_layers") or config["n_layer"]
    kv_heads = 1 if config.get("multi_query") else config.get("num_key_value_heads", heads)
    return CACHE_BLOCKS * 16 * 2 * layers * kv_heads * (config.get("head_dim") or hidden // heads) * 4


def differences(answer: list[dict], expected: list[dict]) -> str:
    if [token["id"] for token in answer] != [token["id"] for token in expected]:
        return "other tokens"
    worst = max(abs(a["logprob"] - b["logprob"]) for a, b in zip(answer, expected))
    return "" if worst <= LOGPROB_TOLERANCE else f"logprobs apart by {worst:.2e}"


def check_family(binary: str, name: str) -> bool:
    model = ROOT / "models" / name
    jobs = jobs_of(model)
    with Server(binary, model, "--device", "cpu") as server:
        expected = [server.tokens(job) for job in jobs]
    flags = ["--device", "cuda", "--prefix-caching", "--kv-cache-memory", str(cache_bytes(model)),
             "--max-active-adapters", "1", "--adapter-cycle-time-s", "0.02", "--max-batch-prefill-tokens", "128",
             "--max-total-tokens", "600"]
    bad = []
    with Server(binary, model, *flags) as server, concurrent.futures.ThreadPoolExecutor(IN_FLIGHT) as pool:
        for _ in range(ROUNDS):
            for job, answer, right in zip(jobs, pool.map(server.tokens, jobs), expected):
                problem = differences(answer, right)
                if problem:
                    bad.append(f"{job[1]}, prompt ends in {job[0][-40:]!r}: {problem}")
        counts = {label: server.metric(metric) for label, metric in {
            "preemptions": "preemptions", "hits": "prefix_hits", "blocks evicted": "prefix_evicted_blocks",
            "adapters evicted": 'adapter_evictions{tier="device"}'}.items()}
    few = [label for label, count in counts.items() if count < AT_LEAST]
    print(f"{name}: {ROUNDS * len(jobs)} answers, {len(bad)} unlike those of the CPU; "
          + ", ".join(f"{count:.0f} {label}" for label, count in counts.items())
          + (f"; too few {', '.join(few)} for a test" if few else ""), flush=True)
    for line in bad[:5]:
        print("  " + line)
    return not bad and not few


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shoal", required=True)
    options = parser.parse_args()
    results = [check_family(options.shoal, name) for name in FAMILIES]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
