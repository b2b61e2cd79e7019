"""Many requests as one batch: equal to each alone, and fast because they share steps."""

import asyncio
import json
import select
import socket

from conftest import ADAPTERS
from streams import stream_native

PROMPTS = ["The quick brown fox", "A server answers", "Zwölf", "def main():", "1234", "Many small fish swim as", "x", "shoal. " * 20]


def test_64_streams_over_nine_models_share_their_steps(server):
    jobs = [(PROMPTS[i % len(PROMPTS)] + " " * (i // 9), ([None, *ADAPTERS])[i % 9]) for i in range(64)]
    parameters = [{"max_new_tokens": 50, "adapter_id": adapter} for _, adapter in jobs]
    solo = [server.token_ids(prompt, **options) for (prompt, _), options in zip(jobs, parameters)]
    server.wait_idle()
    steps_before = server.metric("shoal_decode_steps")

    async def run():
        return await asyncio.gather(
            *(stream_native(server.port, prompt, **options) for (prompt, _), options in zip(jobs, parameters)))

    streams = asyncio.run(run())
    steps = server.metric("shoal_decode_steps") - steps_before
    for expected, events in zip(solo, streams):
        assert [event["token"]["id"] for event in events] == expected
    assert steps <= 120, f"64 streams of 50 tokens took {steps} decode steps"
    server.wait_idle()


def test_sampled_requests_do_not_see_their_batch_mates(server):
    options = [
        {"max_new_tokens": 30, "do_sample": True, "seed": seed, "temperature": 0.5 + seed / 10, "top_k": 5 + seed,
         "repetition_penalty": 1.0 + seed / 20, "adapter_id": ADAPTERS[seed % 8]}
        for seed in range(16)
    ]
    solo = [server.token_ids("The quick", **parameters) for parameters in options]

    async def run():
        return await asyncio.gather(*(stream_native(server.port, "The quick", **parameters) for parameters in options))

    streams = asyncio.run(run())
    assert [[event["token"]["id"] for event in events] for events in streams] == solo


def native_request(path: str, body: dict) -> bytes:
    text = json.dumps(body).encode()
    return (f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            f"content-length: {len(text)}\r\n\r\n").encode() + text


def test_a_request_joins_a_running_stream(paced_server):
    """Sent at token 20 of 200, it answers before token 30."""
    with socket.create_connection(("127.0.0.1", paced_server.port)) as running, \
            socket.create_connection(("127.0.0.1", paced_server.port)) as joining:
        request = native_request("/generate", {"inputs": "x", "parameters": {"max_new_tokens": 1}})
        running.sendall(native_request(
            "/generate_stream", {"inputs": "The quick brown fox", "parameters": {"max_new_tokens": 200, "ignore_eos_token": True}}))
        received = b""
        answered_at = None
        sent = False
        while answered_at is None:
            ready, _, _ = select.select([running, joining], [], [], 10)
            assert ready, "nothing comes"
            if running in ready:
                received += running.recv(65536)
            if joining in ready:
                assert joining.recv(65536).startswith(b"HTTP/1.1 200")
                answered_at = received.count(b"data: ")
            if not sent and received.count(b"data: ") >= 20:
                joining.sendall(request)
                sent = True
        assert answered_at < 30
