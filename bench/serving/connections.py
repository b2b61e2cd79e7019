"""The part `connections`: the same load alone, and beside a thousand connections that are open and hardly used."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

from bench import Bench
from parts import Scale, exchange_flags, finish
from traces import Mix

NUM_IDLE, NUM_STREAMS = 500, 500
SHARE, SLOWDOWN = 0.4, 1.10


class HeldConnections:
    """Used in a `with` block. `still_open` tells at its end how many the server kept."""

    def __init__(self, port: int):
        self.command = [sys.executable, str(Path(__file__).with_name("held.py")), str(port), str(NUM_IDLE),
                        str(NUM_STREAMS)]
        self.still_open: dict = {}

    def __enter__(self) -> "HeldConnections":
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline().strip()
        if line != "held":
            raise RuntimeError(f"the connections were not opened: {line}")
        return self

    def __exit__(self, *_: object) -> None:
        rest, _ = self.process.communicate()
        self.still_open = json.loads(rest) if rest else {}


def connections(bench: Bench, scale: Scale) -> dict:
    """Each run beside the connections lies between two without them, so that a machine that changes its pace is seen."""
    mix = Mix(scale.device_adapters)
    with bench.serve(*exchange_flags(bench, scale), "--max-concurrent-requests", "2048") as server:
        saturated = bench.closed(server, "closed", mix, seconds=scale.closed_s)
        load = {"rate": SHARE * saturated["requests_per_s"], "seconds": scale.open_s}
        alone, beside, kept = [bench.open(server, "alone-0", mix, **load)], [], []
        for repeat in range(scale.repeats):
            with HeldConnections(server.port) as held:
                server.wait_until_idle()  # the load is to meet their connections, not their five hundred answers
                beside.append(bench.open(server, f"beside-{repeat}", mix, **load))
            kept.append(held.still_open)
            alone.append(bench.open(server, f"alone-{repeat + 1}", mix, **load))
    verdict = judge(alone, beside) | {"kept": kept}
    all_kept = all(each == {"idle": NUM_IDLE, "streams": NUM_STREAMS} for each in kept)
    worst, drift = verdict["worst"], verdict["drift"]
    verdict["held"] = bool(all_kept and max(worst.values()) <= SLOWDOWN)
    return finish(bench, verdict, (
        f"{NUM_IDLE} idle connections and {NUM_STREAMS} streams that are read a byte a second beside {load['rate']:.2f} "
        f"requests/s: of {scale.repeats} runs the worst p99 is {worst['first_token_s']:.3f} (first token), "
        f"{worst['inter_token_s']:.3f} (between tokens), {worst['end_to_end_s']:.3f} (whole answers) times the mean of "
        f"that of the same load alone before and after it (<= {SLOWDOWN}; those two differ by up to "
        f"{drift['first_token_s']:.3f}, {drift['inter_token_s']:.3f}, {drift['end_to_end_s']:.3f}); all were kept: "
        f"{'yes' if all_kept else 'no'}"))


def judge(alone: list[dict], beside: list[dict]) -> dict:
    """By figure: the worst p99 beside as a multiple of the mean of its two neighbours, and how far those are apart."""
    worst, drift = {}, {}
    for key in ("first_token_s", "inter_token_s", "end_to_end_s"):
        p99 = [run[key]["p99"] for run in alone]
        pairs = list(zip(p99, p99[1:]))
        worst[key] = max(run[key]["p99"] / math.sqrt(before * after) for run, (before, after) in zip(beside, pairs))
        drift[key] = max(max(pair) / min(pair) for pair in pairs)
    return {"worst": worst, "drift": drift}
