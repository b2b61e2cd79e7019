"""Clients that leave, many connections, and shutting down."""

import asyncio
import os
import random
import resource
import signal
import time

import pytest
import requests
from streams import Stream, stream_native

NUM_STORM = 2000


async def storm_request(port: int, rng: random.Random, adapters: list) -> str:
    """One request; three of ten leave at a random stage."""
    parameters = {"max_new_tokens": rng.randint(1, 200), "adapter_id": rng.choice(adapters), "details": True}
    path = rng.choice(["/generate", "/generate_stream"])
    stream = await Stream(port, path, {"inputs": "fish " * rng.randint(1, 40), "parameters": parameters}).open()
    try:
        if rng.random() >= 0.3:
            await stream.send()
            assert await stream.read_head() == 200
            body = await stream.read_body()
            assert b"error" not in body
            return "finished"
        stage = rng.choice(["connected", "half sent", "sent", "waited", "head", "events"])
        if stage == "half sent":
            await stream.send(limit=rng.randint(1, 150))
        elif stage != "connected":
            await stream.send()
        if stage == "waited":
            await asyncio.sleep(rng.random() * 0.05)
        if stage in ("head", "events") and path == "/generate_stream":
            await stream.read_head()
        if stage == "events" and path == "/generate_stream":
            left = rng.randint(1, 20)
            async for _ in stream.events():
                left -= 1
                if left == 0:
                    break
        return "left"
    finally:
        stream.drop(rudely=rng.random() < 0.5)


async def storm(port: int, count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    adapters = [None, "tenant-0", "tenant-1", "tenant-2", "org/tenant-6"]
    gate = asyncio.Semaphore(48)

    async def one() -> str:
        async with gate:
            return await storm_request(port, rng, adapters)

    return await asyncio.gather(*(one() for _ in range(count)))


def test_cancel_storm_leaks_nothing(own_server):
    # One compute thread: steps of a tiny model then cost the same on a busy machine.
    server = own_server("--threads", "1")
    outcomes = asyncio.run(storm(server.port, NUM_STORM // 4, seed=1))
    server.wait_idle()
    rss = [server.status("VmRSS")]
    # What leaks grows every time; what an allocator keeps for the worst moment so far does not.
    for seed in (2, 3, 4):
        outcomes += asyncio.run(storm(server.port, 3 * NUM_STORM // 4, seed=seed))
        server.wait_idle()
        rss.append(server.status("VmRSS"))
        if rss[-1] <= rss[-2] * 1.02:
            break
    assert outcomes.count("left") > NUM_STORM // 5
    assert server.metric("shoal_used_blocks") == 0
    assert rss[-1] <= rss[-2] * 1.02, f"VmRSS of {rss} kB"
    assert server.metric("shoal_requests_cancelled") > 0
    assert len(server.token_ids("x", max_new_tokens=5)) == 5


@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/v1/completions", "/v1/chat/completions"])
def test_a_client_that_leaves_frees_its_blocks_within_a_second(deep_server, path):
    body = {
        "inputs": "x", "parameters": {"max_new_tokens": 1000}, "model": "", "prompt": "x", "max_tokens": 900,
        "messages": [{"role": "user", "content": "x"}], "stream": path == "/v1/chat/completions",
    }

    async def run():
        streams = [await Stream(deep_server.port, path, body).open() for _ in range(8)]
        for stream in streams:
            await stream.send()
        await asyncio.sleep(0.1)
        for number, stream in enumerate(streams):
            stream.drop(rudely=number % 2 == 0)
        await asyncio.sleep(0)

    finished_before = deep_server.metric("shoal_requests_finished")
    asyncio.run(run())
    deep_server.wait_idle(seconds=1)
    assert deep_server.metric("shoal_requests_finished") - finished_before < 8, "they ran to their ends"


def test_a_thousand_connections_need_no_threads(own_server):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, hard), hard))
    server = own_server()

    async def run():
        connections = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(1000)]
        threads = server.status("Threads")
        for _, writer in connections:
            writer.write(b"GET /ping HTTP/1.1\r\nhost: x\r\n\r\n")
        for reader, _ in connections:
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        events = await stream_native(server.port, "x", max_new_tokens=20)
        assert len(events) == 20
        for _, writer in connections:
            writer.close()
        return threads

    threads = asyncio.run(run())
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert threads <= os.cpu_count() + 8


def test_sigterm_drains(own_server):
    server = own_server()

    async def run():
        stream = await Stream(server.port, "/generate_stream",
                              {"inputs": "x", "parameters": {"max_new_tokens": 1000}}).open()
        await stream.send()
        await stream.read_head()
        events = stream.events()
        await anext(events)
        server.terminate()
        sent = time.monotonic()
        count = 1
        health, took_s = None, 0.0
        async for _ in events:
            count += 1
            if health in (None, 200):  # the signal takes its moment
                health = await asyncio.to_thread(try_health, server.url)
                took_s = time.monotonic() - sent
        return count, health, took_s

    count, health, took_s = asyncio.run(run())
    assert count == 1000, "the stream was cut"
    assert health in (503, "closed")
    assert took_s < 0.5
    assert server.process.wait(60) == 0


def try_health(url: str):
    try:
        return requests.get(url + "/health", timeout=5).status_code
    except requests.ConnectionError:
        return "closed"


def test_second_sigterm_ends_at_once(own_server):
    server = own_server()

    async def run():
        streams = [await Stream(server.port, "/generate_stream",
                                {"inputs": "x" * i, "parameters": {"max_new_tokens": 1000}}).open() for i in range(1, 33)]
        for stream in streams:
            await stream.send()
        for stream in streams:
            await stream.read_head()
        server.terminate()
        await asyncio.sleep(0.1)
        begin = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(server.process.wait, 60)
        return time.monotonic() - begin

    assert asyncio.run(run()) < 2


def test_an_idle_server_ends_at_once(own_server):
    server = own_server()
    begin = time.monotonic()
    server.terminate()
    assert server.process.wait(60) == 0
    assert time.monotonic() - begin < 2
