"""Many requests as one batch: equal to each alone, and fast because they share steps."""

import asyncio
import json
import select
import socket
import statistics
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from conftest import ADAPTERS, Server
from streams import Stream, stream_native

PROMPTS = ["The quick brown fox", "A server answers", "Zwölf", "def main():", "1234", "Many small fish swim as", "x", "shoal. " * 20]


def test_64_streams_over_nine_models_share_their_steps(deep_server):
    jobs = [(PROMPTS[i % len(PROMPTS)] + " " * (i // 9), ([None, *ADAPTERS])[i % 9]) for i in range(64)]
    parameters = [{"max_new_tokens": 50, "ignore_eos_token": True, "adapter_id": adapter} for _, adapter in jobs]
    solo = [deep_server.token_ids(prompt, **options) for (prompt, _), options in zip(jobs, parameters)]
    assert len({tuple(ids) for ids in solo}) > 32, "the adapters tell answers apart"
    deep_server.wait_idle()
    steps_before = deep_server.metric("shoal_decode_steps")

    async def run():
        return await asyncio.gather(
            *(stream_native(deep_server.port, prompt, **options) for (prompt, _), options in zip(jobs, parameters)))

    streams = asyncio.run(run())
    steps = deep_server.metric("shoal_decode_steps") - steps_before
    for expected, events in zip(solo, streams):
        assert [event["token"]["id"] for event in events] == expected
    assert steps <= 120, f"64 streams of 50 tokens took {steps} decode steps"
    deep_server.wait_idle()


def test_sampled_requests_do_not_see_their_batch_mates(server):
    options = [
        {"max_new_tokens": 30, "do_sample": True, "seed": seed, "temperature": 0.5 + seed / 10, "top_k": 5 + seed,
         "repetition_penalty": 1.0 + seed / 20, "watermark": seed % 3 == 1, "adapter_id": ADAPTERS[seed % 8]}
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


def make_query_adapter(folder: Path, config: dict, rank: int = 8) -> None:
    """On q_proj of every layer of a model with this config."""
    rows = config["num_attention_heads"] * config["head_dim"]
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[name + ".lora_A.weight"] = np.full((rank, config["hidden_size"]), 0.01, np.float32)
        tensors[name + ".lora_B.weight"] = np.full((rows, rank), 0.01, np.float32)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    adapter = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(adapter))


@pytest.fixture
def slow_disk_server(paced_model, tmp_path):
    """Its adapter `behind-a-slow-disk` takes four seconds to open."""
    library = tmp_path / "slow_open.so"
    source = Path(__file__).parent / "slow_open.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    config = json.loads((paced_model / "model" / "config.json").read_text())
    make_query_adapter(paced_model / "adapters" / "behind-a-slow-disk", config)
    environment = {"LD_PRELOAD": str(library), "SLOW_PATH": "behind-a-slow-disk/adapter_model"}
    running = Server(paced_model, "--load-format", "dummy", env=environment)
    yield running
    assert running.stop() == 0


def test_a_slow_adapter_delays_nobody_else(slow_disk_server):
    async def run():
        stream = await Stream(slow_disk_server.port, "/generate_stream",
                              {"inputs": "x", "parameters": {"max_new_tokens": 900, "ignore_eos_token": True}}).open()
        await stream.send()
        assert await stream.read_head() == 200
        waiting = None
        quiet_ms, loading_ms = [], []
        last = None
        async for _ in stream.events():
            now = time.monotonic()
            if last is not None:
                (quiet_ms if waiting is None else loading_ms).append((now - last) * 1e3)
            last = now
            if len(quiet_ms) == 200 and waiting is None:
                sent = time.monotonic()
                waiting = asyncio.create_task(stream_native(slow_disk_server.port, "y", max_new_tokens=1,
                                                            adapter_id="behind-a-slow-disk"))
            if waiting is not None and waiting.done():
                break
        await asyncio.wait_for(waiting, 60)  # where steps are fast the stream ends before the load
        took_s = time.monotonic() - sent
        stream.drop()
        assert "generated_text" in waiting.result()[-1], waiting.result()
        return quiet_ms[20:], loading_ms, took_s

    quiet_ms, loading_ms, took_s = asyncio.run(run())
    assert took_s >= 4, "the disk was not slow: nothing was tested"
    assert len(loading_ms) > 100
    quiet, loading = statistics.quantiles(quiet_ms, n=20)[-1], statistics.quantiles(loading_ms, n=20)[-1]
    print(f"gaps (95 of 100): quiet {quiet:.2f} ms, beside the load {loading:.2f} ms, longest {max(loading_ms):.2f} ms")
    assert loading < 2 * quiet
    assert max(loading_ms) < 500
