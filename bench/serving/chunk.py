"""A long prompt amid running streams: how long the streams stand still."""

from __future__ import annotations

import asyncio
import statistics

import figures
from bench import Bench, say
from client import Outcome, Pool, message_of
from parts import Scale, exchange_flags, finish
from server import Server
from traces import Planned

CHUNK_TOKENS, PROMPT_TOKENS, NUM_STREAMS, QUIET_SLOWDOWN = 256, 2000, 8, 1.5
QUIET_TOKENS = 64
BEGUN_TOKENS = 4  # a stream decodes once it has so many


class Streams:
    """Requests that run side by side, each with an adapter of its own."""

    def __init__(self, bench: Bench, pool: Pool):
        self.bench = bench
        self.pool = pool
        self.next_index = 0
        self.num_adapters = max(1, min(NUM_STREAMS, bench.adapters.count))

    def start(self, prompt_tokens: int, output_tokens: int) -> tuple[Outcome, asyncio.Task]:
        index = self.next_index
        self.next_index += 1
        planned = Planned(0.0, prompt_tokens, output_tokens, index % self.num_adapters)
        message = message_of(planned, index, self.bench.adapters.name(planned.adapter))
        outcome = Outcome(planned, asyncio.get_running_loop().time(), message)
        return outcome, asyncio.create_task(self.pool.send(message, outcome))

    async def start_all(self, output_tokens: int) -> list[tuple[Outcome, asyncio.Task]]:
        """Returns when all of them decode."""
        streams = [self.start(8, output_tokens) for _ in range(NUM_STREAMS)]
        while any(len(outcome.event_times) < BEGUN_TOKENS for outcome, _ in streams):
            if any(task.done() for _, task in streams):
                raise RuntimeError(f"a stream ended early: {[outcome.error for outcome, _ in streams]}")
            await asyncio.sleep(0.01)
        return streams

    async def end_all(self, streams: list[tuple[Outcome, asyncio.Task]]) -> None:
        for _, task in streams:
            task.cancel()
        await asyncio.gather(*(task for _, task in streams), return_exceptions=True)


def overlapping_gaps(outcome: Outcome, begin: float, end: float) -> list[float]:
    """Between tokens, of the times that `begin` to `end` touches."""
    times = outcome.event_times
    return [after - before for before, after in zip(times, times[1:]) if after > begin and before < end]


async def quiet_gaps(streams: Streams) -> list[float]:
    running = await streams.start_all(QUIET_TOKENS)
    await asyncio.gather(*(task for _, task in running))
    return [gap for outcome, _ in running for gap in figures.gaps_s(outcome)[BEGUN_TOKENS:]]


async def run_prompt(streams: Streams, num_tokens: int) -> Outcome:
    """A prompt and one token."""
    outcome, task = streams.start(num_tokens, 1)
    await task
    outcome.check()
    if outcome.error:
        raise RuntimeError(outcome.error)
    return outcome


async def busy_gaps(streams: Streams) -> list[float]:
    running = await streams.start_all(1000)  # cut off long before they end
    outcome = await run_prompt(streams, PROMPT_TOKENS)
    gaps = [gap for stream, _ in running for gap in overlapping_gaps(stream, outcome.sent, outcome.end)]
    await streams.end_all(running)
    return gaps


async def measure(bench: Bench, server: Server, repeats: int) -> dict:
    pool = Pool(server.port, bench.settings.timeout_s)
    streams = Streams(bench, pool)
    await quiet_gaps(streams)  # warms up, and brings the adapters
    quiet, busy, first_chunks, prompts = [], [], [], []
    for _ in range(repeats):
        quiet += await quiet_gaps(streams)
        for _ in range(2):
            first_chunks.append(figures.first_token_s(await run_prompt(streams, CHUNK_TOKENS)))
        prompts.append(figures.first_token_s(await run_prompt(streams, PROMPT_TOKENS)))
        busy += await busy_gaps(streams)
    pool.close()
    return {"quiet_s": figures.percentiles(quiet), "busy_s": figures.percentiles(busy), "busy_gaps": len(busy),
            "quiet_gaps": len(quiet), "longest_s": max(busy), "chunk_s": statistics.median(first_chunks),
            "prompt_s": statistics.median(prompts)}


def chunk(bench: Bench, scale: Scale) -> dict:
    flags = [*exchange_flags(bench, scale), "--max-batch-prefill-tokens", str(CHUNK_TOKENS)]
    with bench.serve(*flags) as server:
        measured = bench.keep({"part": "chunk", "name": "streams", "flags": server.flags,
                               **asyncio.run(measure(bench, server, scale.repeats))})
    quiet, busy = measured["quiet_s"]["p99"], measured["busy_s"]["p99"]
    allowed = QUIET_SLOWDOWN * quiet + measured["chunk_s"]
    verdict = {"quiet_p99_s": quiet, "busy_p99_s": busy, "chunk_s": measured["chunk_s"], "allowed_s": allowed,
               "held": bool(busy <= allowed)}
    say(f"{NUM_STREAMS} streams: quiet p99 {quiet:.3f} s, {CHUNK_TOKENS} prompt tokens {measured['chunk_s']:.3f} s")
    return finish(bench, verdict, (
        f"p99 between tokens while a prompt of {PROMPT_TOKENS} runs {busy:.3f} s, allowed {QUIET_SLOWDOWN} x "
        f"{quiet:.3f} + {measured['chunk_s']:.3f} = {allowed:.3f} s"))
