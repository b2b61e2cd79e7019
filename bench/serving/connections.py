"""The part `connections`: the same load alone, and beside a thousand connections that are open and hardly used."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bench import Bench
from parts import Scale, exchange_flags, finish
from traces import Mix

NUM_IDLE, NUM_STREAMS = 500, 500
SHARE, SLOWDOWN = 0.5, 1.10


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
    mix = Mix(scale.device_adapters)
    slowdowns, kept = [], []
    with bench.serve(*exchange_flags(bench, scale), "--max-concurrent-requests", "2048") as server:
        saturated = bench.closed(server, "closed", mix, seconds=scale.closed_s)
        rate = SHARE * saturated["requests_per_s"]
        for repeat in range(scale.repeats):
            alone = bench.open(server, f"alone-{repeat}", mix, rate=rate, seconds=scale.open_s, seed=repeat)
            with HeldConnections(server.port) as held:
                beside = bench.open(server, f"beside-{repeat}", mix, rate=rate, seconds=scale.open_s, seed=repeat)
            kept.append(held.still_open)
            slowdowns.append({key: beside[key]["p99"] / alone[key]["p99"]
                              for key in ("first_token_s", "inter_token_s", "end_to_end_s")})
    all_kept = all(each == {"idle": NUM_IDLE, "streams": NUM_STREAMS} for each in kept)
    worst = {key: max(each[key] for each in slowdowns) for key in slowdowns[0]}
    verdict = {"slowdowns": slowdowns, "kept": kept, "held": bool(all_kept and max(worst.values()) <= SLOWDOWN)}
    return finish(bench, verdict, (
        f"{NUM_IDLE} idle connections and {NUM_STREAMS} streams that are read a byte a second beside {rate:.2f} "
        f"requests/s: of {scale.repeats} runs the worst p99 is {worst['first_token_s']:.3f} (first token), "
        f"{worst['inter_token_s']:.3f} (between tokens), {worst['end_to_end_s']:.3f} (whole answers) times that of the "
        f"same load alone (<= {SLOWDOWN}); all were kept: {'yes' if all_kept else 'no'}"))
