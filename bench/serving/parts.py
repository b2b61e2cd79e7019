"""The parts of the benchmark. Each runs its servers and ends with a record of its verdict."""

from __future__ import annotations

import dataclasses

import traces
from bench import Bench, say
from traces import Lengths, Mix

EXCHANGE_SHARE, EXCHANGE_LOADS, OPEN_SHARE, OPEN_SLOWDOWN = 0.9, 1000, 0.8, 2.0
QUIET_SHARE, TENANT_RATIO, TENANT_SLOWDOWN, FAIR_BATCH = 0.25, 50, 2.0, 4


@dataclasses.dataclass(frozen=True)
class Scale:
    """How large and how long the runs of a part are."""

    num_adapters: int
    device_adapters: int
    host_adapters: int
    closed_s: float
    open_s: float
    min_loads: int
    most_s: float
    repeats: int
    shares: tuple[float, ...]  # of saturation, in a sweep


def _memory(bench: Bench, num_adapters: int) -> str:
    """Bytes for as many adapters, each rounded up as far as the server may."""
    return str(num_adapters * (bench.adapters.bytes_each // 4096 + 2) * 4096)


def exchange_flags(bench: Bench, scale: Scale) -> list[str]:
    return ["--max-active-adapters", str(scale.device_adapters),
            "--adapter-memory", _memory(bench, scale.device_adapters),
            "--adapter-host-memory", _memory(bench, scale.host_adapters)]


def exchange(bench: Bench, scale: Scale) -> dict:
    """Many adapters against as many as the device holds: closed loops, then open ones at a share of their rate. The
    loop over few comes before and after, since a machine may get slower while it is measured."""
    few, many = Mix(scale.device_adapters), Mix(scale.num_adapters)
    flags = exchange_flags(bench, scale)
    with bench.serve(*flags) as server:
        before = bench.closed(server, "closed-few-before", few, seconds=scale.closed_s)
    with bench.serve(*flags) as server:
        over_many = bench.closed(server, "closed-many", many, seconds=scale.closed_s, min_loads=scale.min_loads,
                                 most_seconds=scale.most_s)
        rate = OPEN_SHARE * over_many["requests_per_s"]
        open_many = bench.open(server, "open-many", many, rate=rate, seconds=scale.open_s)
    with bench.serve(*flags) as server:
        after = bench.closed(server, "closed-few-after", few, seconds=scale.closed_s)
        open_few = bench.open(server, "open-few", few, rate=rate, seconds=scale.open_s)
    few_rate = (before["requests_per_s"] + after["requests_per_s"]) / 2
    loads = over_many["server"].get("shoal_adapter_loads", 0)
    slowdown = open_many["first_token_s"]["p99"] / open_few["first_token_s"]["p99"]
    verdict = {
        "few_per_s": few_rate, "many_per_s": over_many["requests_per_s"],
        "share": over_many["requests_per_s"] / few_rate, "loads": loads,
        "few_first_p99_s": open_few["first_token_s"]["p99"], "many_first_p99_s": open_many["first_token_s"]["p99"],
        "slowdown": slowdown,
        "held": bool(over_many["requests_per_s"] >= EXCHANGE_SHARE * few_rate and loads > scale.min_loads
                     and slowdown <= OPEN_SLOWDOWN),
    }
    return finish(bench, verdict, (
        f"{many.num_adapters} adapters against {few.num_adapters}: {verdict['many_per_s']:.2f} of {few_rate:.2f} "
        f"requests/s, {verdict['share']:.3f} (>= {EXCHANGE_SHARE}) with {loads:.0f} loads (> {scale.min_loads}); p99 "
        f"first token at {rate:.2f}/s {verdict['many_first_p99_s']:.2f} against {verdict['few_first_p99_s']:.2f} s, "
        f"{slowdown:.2f} (<= {OPEN_SLOWDOWN})"))


def fairness(bench: Bench, scale: Scale) -> dict:
    """A quiet tenant alone, and beside one that asks 50 times as often, far more than can be served."""
    mix = Mix(scale.device_adapters)
    # Without the limit the loud one takes every place that the server has.
    flags = [*exchange_flags(bench, scale), "--max-batch-size", str(FAIR_BATCH), "--max-batch-prefill-tokens", "32",
             "--max-requests-per-tenant", "256"]
    total_s = bench.settings.warmup_s + scale.open_s
    with bench.serve(*flags) as server:
        saturated = bench.closed(server, "closed", mix, seconds=scale.closed_s, num_clients=2 * FAIR_BATCH)
        rate = QUIET_SHARE * saturated["requests_per_s"]
        lengths, seed = bench.settings.lengths, bench.settings.seed
        quiet = traces.open_trace(rate, total_s, lengths, mix, seed=seed, tenant="quiet")
        loud = traces.open_trace(TENANT_RATIO * rate, total_s, lengths, mix, seed=seed + 1, tenant="loud")
        about = {"rate": rate, "cv": 1.0, "adapters": mix.num_adapters, "mix": mix.label()}
        alone = bench.open_drawn(server, "quiet-alone", quiet, total_s, about)
        beside = bench.open_drawn(server, "quiet-beside-loud", traces.merged(quiet, loud), total_s, about,
                                  lambda planned: planned.tenant == "quiet")
    slowdown = beside["first_token_s"]["p95"] / alone["first_token_s"]["p95"]
    verdict = {
        "quiet_per_s": rate, "loud_per_s": TENANT_RATIO * rate, "saturation_per_s": saturated["requests_per_s"],
        "alone_p95_s": alone["first_token_s"]["p95"], "beside_p95_s": beside["first_token_s"]["p95"],
        "slowdown": slowdown, "loud_answered": beside["others"]["answered"], "loud_sent": beside["others"]["sent"],
        "held": bool(slowdown <= TENANT_SLOWDOWN),
    }
    return finish(bench, verdict, (
        f"the quiet tenant waits p95 {verdict['beside_p95_s']:.3f} s for a first token beside one at {TENANT_RATIO} "
        f"times its rate, {verdict['alone_p95_s']:.3f} s alone: {slowdown:.2f} (<= {TENANT_SLOWDOWN:g})"))


def sweep(bench: Bench, scale: Scale) -> dict:
    """Latency against load, by arrivals and by mix of adapters."""
    largest = Mix(scale.num_adapters)
    loads = [(largest, 1.0), (largest, 4.0), (Mix(scale.device_adapters), 1.0)]
    with bench.serve(*exchange_flags(bench, scale)) as server:
        saturated = bench.closed(server, "closed", largest, seconds=scale.closed_s)
        saturation = saturated["requests_per_s"]
        for repeat in range(scale.repeats):
            for mix, cv in loads:
                for share in scale.shares:
                    bench.open(server, f"load-{mix.num_adapters}-cv{cv:g}-{share:g}-{repeat}", mix, cv=cv,
                               rate=share * saturation, seconds=scale.open_s, seed=repeat)
            for mix in mixes(scale.num_adapters):
                name = f"mix-{mix.num_adapters}-{mix.label().replace(' ', '')}-{repeat}"
                bench.open(server, name, mix, rate=0.7 * saturation, seconds=scale.open_s, seed=repeat)
    return finish(bench, {"saturation_per_s": saturation, "held": True}, f"saturation {saturation:.2f} requests/s")


def mixes(num_adapters: int) -> list[Mix]:
    """Of the second half of a sweep: how many adapters, then how they are drawn."""
    counts = [count for count in (0, 1, 8, 32, 128, 512) if count < num_adapters] + [num_adapters]
    return [Mix(count) for count in counts] + [Mix(num_adapters, "zipf", 1.5), Mix(num_adapters, "uniform"),
                                               Mix(num_adapters, "distinct")]


def finish(bench: Bench, verdict: dict, line: str) -> dict:
    held = "HELD" if verdict["held"] else "MISSED"
    say(f"verdict of {bench.part}: {held}: {line}")
    return bench.keep({"part": bench.part, "name": "verdict", "line": f"{held}: {line}", **verdict})
