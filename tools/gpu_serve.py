"""The server on a GPU under pressure, against the server on the CPU at rest: the small trained models in float32, with
a prefix cache of too few blocks, preemptions and adapters that are exchanged, merged adapters and embeddings among the
answers. Needs nothing but Python.
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
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FAMILIES = ("solar", "falcon", "santacoder", "cohere")
IN_FLIGHT, ROUNDS, NEW_TOKENS, CACHE_BLOCKS = 16, 2, 60, 40
LOGPROB_TOLERANCE = 2e-3
EMBEDDING_TOLERANCE = 1e-3  # of the longest vector's length
# Among few tokens: in the long tail of a vocabulary a draw between two tokens hangs on the last bits of the logits.
SAMPLED = {"do_sample": True, "top_k": 10, "repetition_penalty": 1.2, "watermark": True}
GENERATE, EMBED = "/generate", "/embed"
AT_LEAST = 10  # of each kind of pressure


class Job(NamedTuple):
    route: str
    prompt: str
    parameters: dict


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

    def answer(self, job: Job) -> list[dict] | list[float]:
        """A text's tokens, or an embedding."""
        body = json.dumps({"inputs": job.prompt, "parameters": job.parameters}).encode()
        request = urllib.request.Request(self.url + job.route, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            whole = json.load(answer)
        return whole["embeddings"] if job.route == EMBED else whole["details"]["tokens"]


def jobs_of(model: Path) -> list[Job]:
    """Two beginnings and twelve ends, each under the base model, every adapter and a merge of two; a third of them
    sampled, and every fourth an embedding."""
    prompts = json.loads((model / "reference" / "prompts.json").read_text())
    runs = sorted(prompts)
    beginnings = [" ".join(prompts[run][:4]) for run in runs[1:3]]
    ends = [prompt for prompt in prompts["base"] + prompts[runs[1]] if len(prompt) < 200]
    jobs = []
    for i in range(12):
        for run in (*runs, "merge"):
            adapter = adapters_of(run, [each for each in runs if each != "base"])
            prompt = f"{beginnings[i % 2]} {ends[i]}"
            sampled = SAMPLED | {"seed": i} if i % 3 == 2 else {}
            jobs.append(Job(GENERATE, prompt, {"details": True, "max_new_tokens": NEW_TOKENS, "ignore_eos_token": True,
                                               **adapter, **sampled}))
            if i % 4 == 0:
                jobs.append(Job(EMBED, prompt, adapter))
    return jobs


def adapters_of(run: str, adapters: list[str]) -> dict:
    if run == "merge":
        return {"merged_adapters": {"ids": adapters[:2], "weights": [0.7, 0.5], "merge_strategy": "dare_ties",
                                    "density": 0.6}}
    return {} if run == "base" else {"adapter_id": run}


def cache_bytes(model: Path) -> int:
    config = json.loads((model / "config.json").read_text())
    heads = config.get("num_attention_heads") or config["n_head"]
    hidden = config.get("hidden_size") or config["n_embd"]
    layers = config.get("num_hidden_layers") or config["n_layer"]
    kv_heads = 1 if config.get("multi_query") else config.get("num_key_value_heads", heads)
    return CACHE_BLOCKS * 16 * 2 * layers * kv_heads * (config.get("head_dim") or hidden // heads) * 4


def differences(answer: list, expected: list) -> str:
    if isinstance(expected[0], float):
        length = sum(value * value for value in expected) ** 0.5
        worst = max(abs(a - b) for a, b in zip(answer, expected)) / length
        return "" if len(answer) == len(expected) and worst <= EMBEDDING_TOLERANCE else f"a vector apart by {worst:.2e}"
    if [token["id"] for token in answer] != [token["id"] for token in expected]:
        return "other tokens"
    worst = max(abs(a["logprob"] - b["logprob"]) for a, b in zip(answer, expected))
    return "" if worst <= LOGPROB_TOLERANCE else f"logprobs apart by {worst:.2e}"


def check_family(binary: str, name: str) -> bool:
    model = ROOT / "models" / name
    jobs = jobs_of(model)
    with Server(binary, model, "--device", "cpu") as server:
        expected = [server.answer(job) for job in jobs]
    flags = ["--device", "cuda", "--prefix-caching", "--kv-cache-memory", str(cache_bytes(model)),
             "--max-active-adapters", "1", "--adapter-cycle-time-s", "0.02", "--max-batch-prefill-tokens", "128",
             "--max-total-tokens", "600"]
    bad = []
    with Server(binary, model, *flags) as server, concurrent.futures.ThreadPoolExecutor(IN_FLIGHT) as pool:
        for _ in range(ROUNDS):
            for job, answer, right in zip(jobs, pool.map(server.answer, jobs), expected):
                problem = differences(answer, right)
                if problem:
                    bad.append(f"{job.route} {job.parameters}, prompt ends in {job.prompt[-40:]!r}: {problem}")
        counts = {label: server.metric(metric) for label, metric in {
            "preemptions": "preemptions", "hits": "prefix_hits", "blocks evicted": "prefix_evicted_blocks",
            "adapters evicted": 'adapter_evictions{tier="device"}', "steps ahead": "steps_ahead"}.items()}
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
