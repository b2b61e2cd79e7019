"""The two loops: open, where requests are sent when they are due whatever the server does, and closed, where each of
some clients sends its next request when its last one is answered."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import os
import time
from collections.abc import Callable

from client import Outcome, Pool, message_of
from traces import BASE, Planned

PROBE_S = 0.01


@dataclasses.dataclass
class Run:
    """All outcomes of one loop, and how well the client itself kept up."""

    outcomes: list[Outcome]
    begin: float  # of the window that counts, after the warm-up
    end: float
    probe_lags: list[float]  # seconds by which a timer of the client rang too late
    client_cpu_s: float


async def _probe(lags: list[float]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + PROBE_S
        await asyncio.sleep(PROBE_S)
        lags.append(max(0.0, loop.time() - due))


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system


def messages_of(trace: list[Planned], name_of: Callable[[int], str]) -> list[bytes]:
    return [message_of(planned, index, None if planned.adapter == BASE else name_of(planned.adapter))
            for index, planned in enumerate(trace)]


async def _measured(body, warmup_s: float) -> Run:
    """Runs `body(start)`, which returns outcomes and the end of the window, with the client's own lag watched."""
    loop = asyncio.get_running_loop()
    lags: list[float] = []
    gc.collect()
    gc.disable()
    probe = asyncio.create_task(_probe(lags))
    cpu_before = _cpu_s()
    try:
        start = loop.time() + 0.05
        outcomes, end = await body(start)
    finally:
        gc.enable()
        probe.cancel()
    return Run(outcomes, start + warmup_s, end, lags, _cpu_s() - cpu_before)


async def run_open(pool: Pool, trace: list[Planned], messages: list[bytes], *, seconds: float, warmup_s: float,
                   wait_for: Callable[[Planned], bool] = lambda planned: True) -> Run:
    """Ends when all requests that `wait_for` names are answered; the others are cut off then."""
    loop = asyncio.get_running_loop()

    async def body(start: float) -> tuple[list[Outcome], float]:
        outcomes, awaited, others = [], [], []
        for planned, message in zip(trace, messages):
            due = start + planned.due_s
            if (delay := due - loop.time()) > 0:
                await asyncio.sleep(delay)
            outcomes.append(Outcome(planned, due, message))
            task = asyncio.create_task(pool.send(message, outcomes[-1]))
            (awaited if wait_for(planned) else others).append(task)
        await asyncio.gather(*awaited)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        return outcomes, start + seconds

    return await _measured(body, warmup_s)


async def run_closed(pool: Pool, trace: list[Planned], messages: list[bytes], *, num_clients: int, seconds: float,
                     warmup_s: float, go_on: Callable[[float], bool] = lambda elapsed_s: False,
                     ask_s: float = 2.0) -> Run:
    """Lasts `seconds` after the warm-up, and on while `go_on(elapsed_s)`, which is asked every `ask_s`. The trace
    begins again where it ends."""
    loop = asyncio.get_running_loop()

    async def body(start: float) -> tuple[list[Outcome], float]:
        outcomes: list[Outcome] = []
        stop = asyncio.Event()

        async def client() -> None:
            while not stop.is_set():
                index = len(outcomes) % len(trace)
                outcome = Outcome(trace[index], loop.time(), messages[index])
                outcomes.append(outcome)
                await pool.send(messages[index], outcome)
                if outcome.error:
                    await asyncio.sleep(0.1)  # a server that refuses is not to be asked in a busy loop

        clients = [asyncio.create_task(client()) for _ in range(num_clients)]
        await asyncio.sleep(start + warmup_s + seconds - loop.time())
        while await asyncio.to_thread(go_on, loop.time() - start - warmup_s):
            await asyncio.sleep(ask_s)
        end = loop.time()
        stop.set()
        await asyncio.gather(*clients)
        return outcomes, end

    return await _measured(body, warmup_s)


def wall_clock() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
