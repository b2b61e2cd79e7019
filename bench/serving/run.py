"""Load on `shoal serve`: `run.py --binary build/shoal --part exchange --out build/serving`; docs/serving.md tells more.

Runs in the environment of tools/setup.sh. Exits with 1 when a verdict was missed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import report  # noqa: E402  (the path above comes first)
from bench import Bench, Settings, say  # noqa: E402
from chunk import chunk  # noqa: E402
from connections import connections  # noqa: E402
from figures import Goal  # noqa: E402
from parts import Scale, exchange, fairness, sweep  # noqa: E402
from server import commit, machine  # noqa: E402
from traces import Lengths  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
PARTS = {"exchange": exchange, "chunk": chunk, "fairness": fairness, "connections": connections, "sweep": sweep}
REPEATS = {"chunk": 3, "connections": 3, "sweep": 3}
OPEN_SECONDS = {"exchange": 100.0, "fairness": 200.0, "connections": 100.0, "sweep": 40.0}


def span(text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    return int(low), int(high or low)


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--binary", type=Path, default=ROOT / "build" / "shoal")
    add("--part", choices=[*PARTS, "report"], required=True, help="report: only write the pages anew")
    add("--out", type=Path, default=ROOT / "build" / "serving", help="records, traces, requests, pages")
    add("--work", type=Path, default=Path("/tmp/shoal-serving"), help="models and adapters, kept: about 7 GB")
    add("--docs", type=Path, help="a page whose marked tables are written anew, such as docs/serving.md")
    add("--config", type=Path, default=ROOT / "bench" / "configs" / "solar-like.json", help="of the dummy")
    add("--ranks", default="8", help="of the adapters, in turn: 8,16,32,64")
    add("--adapters", type=int, default=2000)
    add("--device-adapters", type=int, default=16, help="as many fit on the device")
    add("--host-adapters", type=int, default=200, help="as many fit in host memory")
    add("--prompt", type=span, help="tokens, from-to; default: 8-16, of fairness 96-160")
    add("--output", type=span, default=(2, 6), help="tokens, from-to")
    add("--clients", type=int, default=32, help="of a closed loop")
    add("--warmup", type=float, default=10.0, help="seconds of a run that do not count")
    add("--closed-seconds", type=float, default=60.0)
    add("--open-seconds", type=float, help="default: 100, of fairness 200, of sweep 40")
    add("--min-loads", type=int, default=1000, help="a closed loop over all adapters goes on until it has more")
    add("--most-seconds", type=float, default=900.0, help="but not for longer")
    add("--shares", default="0.25,0.5,0.75,0.9,1.1", help="of saturation: the rates of a sweep")
    add("--repeats", type=int, help="default: 3, of chunk, connections and sweep")
    add("--goal", default="0.5,0.05", help="goodput: seconds to the first token, mean seconds between tokens")
    add("--timeout", type=float, default=120.0, help="seconds after which an answer is given up")
    add("--check", type=int, default=4, help="answers of a run that are asked for again on the idle server")
    add("--seed", type=int, default=1)
    add("flags", nargs="*", help="after --: more flags for the server")
    options = parser.parse_args(words)
    options.prompt = options.prompt or ((96, 160) if options.part == "fairness" else (8, 16))
    options.open_seconds = options.open_seconds or OPEN_SECONDS.get(options.part, 0.0)
    options.repeats = options.repeats or REPEATS.get(options.part, 1)
    return options


def settings_of(options: argparse.Namespace) -> Settings:
    first_token_s, inter_token_s = (float(each) for each in options.goal.split(","))
    return Settings(
        binary=options.binary.resolve(), work=options.work, out=options.out, config=options.config,
        lengths=Lengths(options.prompt, options.output), ranks=tuple(int(rank) for rank in options.ranks.split(",")),
        flags=options.flags, num_clients=options.clients, warmup_s=options.warmup, timeout_s=options.timeout,
        num_checked=options.check, seed=options.seed, goal=Goal(first_token_s, inter_token_s))


def scale_of(options: argparse.Namespace) -> Scale:
    return Scale(num_adapters=options.adapters, device_adapters=options.device_adapters,
                 host_adapters=options.host_adapters, closed_s=options.closed_seconds, open_s=options.open_seconds,
                 min_loads=options.min_loads, most_s=options.most_seconds,
                 repeats=options.repeats,
                 shares=tuple(float(share) for share in options.shares.split(",")))


def main(words: list[str]) -> int:
    options = parse(words)
    held = True
    if options.part != "report":
        settings, scale = settings_of(options), scale_of(options)
        num_adapters = scale.num_adapters if options.part in ("exchange", "sweep") else scale.device_adapters
        bench = Bench(options.part, settings, num_adapters)
        about = {"part": options.part, "name": "about", "date": time.strftime("%Y-%m-%d", time.gmtime()),
                 "commit": commit(ROOT), "machine": machine(), "load_before": os.getloadavg()[0],
                 "command": " ".join(["bench/serving/run.py", *words]), "config": options.config.stem,
                 "prompt": options.prompt, "output": options.output, "rank": bench.adapters.rank,
                 "bytes_each": bench.adapters.bytes_each, "seed": options.seed,
                 "scale": {"adapters": options.adapters, "device": options.device_adapters,
                           "host": options.host_adapters}}
        bench.keep(about)
        held = PARTS[options.part](bench, scale)["held"]
    for page in report.write(options.out, options.docs):
        say(f"wrote {page}")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
