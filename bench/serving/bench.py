"""What all parts share: the model under test, one open or closed run from trace to record, and the files of records."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
from pathlib import Path

import dummies
import figures
import load
import traces
from client import Outcome, Pool
from server import Server
from traces import Lengths, Mix, Planned

CURVE = range(0, 101, 2)  # percents of the curve of first tokens that each record keeps


@dataclasses.dataclass
class Settings:
    """Of one invocation."""

    binary: Path
    work: Path
    out: Path
    config: Path
    lengths: Lengths
    ranks: tuple[int, ...]
    flags: list[str]  # for the server, beside those of the part
    num_clients: int
    warmup_s: float
    timeout_s: float
    num_checked: int
    seed: int
    goal: figures.Goal


class Bench:
    """One part at work: its servers, its runs, and its file of records."""

    def __init__(self, part: str, settings: Settings, num_adapters: int):
        self.part = part
        self.settings = settings
        say(f"{num_adapters} adapters and a model like {settings.config.stem} under {settings.work}")
        self.model, self.adapters = dummies.make(settings.work, settings.config, num_adapters, settings.ranks)
        settings.out.mkdir(parents=True, exist_ok=True)
        self.records_file = settings.out / f"{part}.jsonl"
        self.records_file.write_text("")

    def serve(self, *flags: str) -> Server:
        return Server(self.settings.binary, self.model, self.adapters.folder, self.settings.out / f"{self.part}.log",
                      [*flags, *self.settings.flags])

    def keep(self, record: dict) -> dict:
        with self.records_file.open("a") as file:
            file.write(json.dumps(finite(record)) + "\n")
        return record

    def closed(self, server: Server, name: str, mix: Mix, *, seconds: float, min_loads: int = 0,
               most_seconds: float = 0.0, num_clients: int | None = None) -> dict:
        """Goes on past `seconds` until the server has loaded `min_loads` adapters from disk, up to `most_seconds`."""
        settings = self.settings
        num_clients = num_clients or settings.num_clients
        trace = self._drawn(name, traces.closed_trace(20_000, settings.lengths, mix, seed=settings.seed))
        loads_before = server.metrics().get("shoal_adapter_loads", 0.0)

        def go_on(elapsed_s: float) -> bool:
            loads = server.metrics().get("shoal_adapter_loads", 0.0) - loads_before
            return loads <= min_loads and elapsed_s < most_seconds

        async def run(pool: Pool) -> load.Run:
            return await load.run_closed(pool, trace, load.messages_of(trace, self.adapters.name),
                                         num_clients=num_clients, seconds=seconds,
                                         warmup_s=settings.warmup_s, go_on=go_on)

        return self._record(server, name, run, {"loop": "closed", "clients": num_clients, **of_mix(mix)})

    def open(self, server: Server, name: str, mix: Mix, *, rate: float, seconds: float, cv: float = 1.0,
             seed: int = 0) -> dict:
        settings = self.settings
        total_s = settings.warmup_s + seconds
        drawn = traces.open_trace(rate, total_s, settings.lengths, mix, cv=cv, seed=settings.seed + seed)
        return self.open_drawn(server, name, drawn, total_s, {"rate": rate, "cv": cv, **of_mix(mix)})

    def open_drawn(self, server: Server, name: str, drawn: list[Planned], total_s: float, about: dict,
                   wait_for=lambda planned: True) -> dict:
        """Figures are of the requests that `wait_for` names; what becomes of the others is counted alone."""
        settings = self.settings
        trace = self._drawn(name, drawn)

        async def run(pool: Pool) -> load.Run:
            return await load.run_open(pool, trace, load.messages_of(trace, self.adapters.name), seconds=total_s,
                                       warmup_s=settings.warmup_s, wait_for=wait_for)

        return self._record(server, name, run, {"loop": "open", **about}, wait_for)

    def _drawn(self, name: str, trace: list[Planned]) -> list[Planned]:
        path = self.settings.out / f"{self.part}-{name}.trace.jsonl"
        traces.save(path, trace)
        return traces.load(path)

    def _record(self, server: Server, name: str, run, about: dict, wait_for=lambda planned: True) -> dict:
        settings = self.settings

        async def with_pool() -> load.Run:
            pool = Pool(server.port, settings.timeout_s)
            try:
                return await run(pool)
            finally:
                pool.close()

        say(f"{name}: {' '.join(f'{key}={value}' for key, value in about.items())}")
        before = server.counters()
        done = asyncio.run(with_pool())
        after = server.counters()
        for outcome in done.outcomes:
            outcome.check()
        self._write_requests(name, done)
        others = [outcome for outcome in done.outcomes if not wait_for(outcome.planned)]
        counted = dataclasses.replace(done, outcomes=[each for each in done.outcomes if wait_for(each.planned)])
        taken = {key: after[key] - before.get(key, 0.0) for key in after}
        record = {
            "part": self.part, "name": name, **about, **figures.summary(counted, settings.goal),
            "first_token_curve_s": figures.curve(counted, CURVE),
            "others": {"sent": len(others), "answered": sum(outcome.ok for outcome in others)},
            "checked": self._checked(server, counted.outcomes),
            "server": taken,
            "cores_of_others": figures.cores_of_others(taken, done.client_cpu_s),
            "flags": server.flags,
        }
        say(f"{name}: {in_short(record)}")
        return self.keep(record)

    def _write_requests(self, name: str, run: load.Run) -> None:
        """A line a request: due, sent, first token, end (seconds after the warm-up), tokens, adapter, tenant, error."""
        with (self.settings.out / f"{self.part}-{name}.requests.jsonl").open("w") as file:
            for each in run.outcomes:
                first = each.event_times[0] if each.event_times else math.nan
                times = [round(time - run.begin, 6) for time in (each.due, each.sent, first, each.end)]
                row = [*times, len(each.event_times), each.planned.adapter, each.planned.tenant, each.error]
                file.write(json.dumps(finite(row)) + "\n")

    def _checked(self, server: Server, outcomes: list[Outcome]) -> dict:
        """Asks again for some of the answers, one by one on the idle server: their tokens have to be the same."""
        answered = [outcome for outcome in outcomes if outcome.ok]
        count = min(self.settings.num_checked, len(answered))
        chosen = [answered[len(answered) * each // count] for each in range(count)]

        async def ask_again() -> int:
            pool = Pool(server.port, self.settings.timeout_s)
            same = 0
            for outcome in chosen:
                again = Outcome(outcome.planned, asyncio.get_running_loop().time())
                await pool.send(outcome.message, again)
                again.check()
                same += again.ok and again.token_ids == outcome.token_ids
            pool.close()
            return same

        return {"answers": count, "same": asyncio.run(ask_again())}


def of_mix(mix: Mix) -> dict:
    return {"adapters": mix.num_adapters, "mix": mix.label()}


def finite(value):
    """The same with null for what JSON cannot say: an endless wait, or a figure of nothing."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def say(text: str) -> None:
    print(f"[{load.wall_clock()}] {text}", flush=True)


def in_short(record: dict) -> str:
    first, gap = record["first_token_s"], record["inter_token_s"]
    parts = [f"{record['requests_per_s']:.2f} requests/s", f"{record['output_tokens_per_s']:.1f} tokens/s",
             f"first token p50 {first['p50']:.3f} p99 {first['p99']:.3f} s", f"gap p99 {gap['p99']:.3f} s",
             f"loads {record['server'].get('shoal_adapter_loads', 0):.0f}",
             f"checked {record['checked']['same']}/{record['checked']['answers']}"]
    if record["errors"]:
        parts.append(f"errors {record['errors']}")
    if record["cores_of_others"] > 0.1:
        parts.append(f"{record['cores_of_others']:.2f} cores busy with something else")
    stolen = record["server"]["stolen_cpu_s"] / record["server"]["clock_s"]
    if stolen > 0.01:
        parts.append(f"{stolen:.2f} cores taken by the host of this machine")
    if record["client"]["held_up"]:
        parts.append("THE CLIENT ITSELF WAS HELD UP")
    return ", ".join(parts)
