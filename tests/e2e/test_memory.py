"""What loading and a long prompt cost in memory, as the operating system counts it."""

import json
import os
import socket
import struct
import subprocess
import time

import pytest
import requests

from conftest import BINARY, ROOT, Server

SHARD_BYTES = 600 << 20
JSON = {"content-type": "application/json"}


def solar_tensors(config: dict) -> dict[str, list[int]]:
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    shapes = {"model.embed_tokens.weight": [config["vocab_size"], hidden], "model.norm.weight": [hidden]}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = [config["vocab_size"], hidden]
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        shapes |= {
            name + "input_layernorm.weight": [hidden],
            name + "post_attention_layernorm.weight": [hidden],
            name + "self_attn.q_proj.weight": [queries, hidden],
            name + "self_attn.k_proj.weight": [keys, hidden],
            name + "self_attn.v_proj.weight": [keys, hidden],
            name + "self_attn.o_proj.weight": [hidden, queries],
            name + "mlp.gate_proj.weight": [inner, hidden],
            name + "mlp.up_proj.weight": [inner, hidden],
            name + "mlp.down_proj.weight": [hidden, inner],
        }
    return shapes


def write_sharded(folder, config: dict) -> int:
    """A bfloat16 checkpoint of zeros in sparse shards, so that it costs no disk; returns the bytes of its tensors."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    shards, size = [{}], 0
    for name, shape in solar_tensors(config).items():
        num_bytes = 2
        for extent in shape:
            num_bytes *= extent
        if size + num_bytes > SHARD_BYTES:
            shards.append({})
            size = 0
        shards[-1][name] = {"dtype": "BF16", "shape": shape, "data_offsets": [size, size + num_bytes]}
        size += num_bytes
    weight_map, total = {}, 0
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        header = json.dumps(shard).encode()
        header += b" " * (-len(header) % 8)
        data_bytes = max(info["data_offsets"][1] for info in shard.values())
        with open(folder / file, "wb") as out:
            out.write(struct.pack("<Q", len(header)) + header)
            out.truncate(8 + len(header) + data_bytes)
        weight_map |= dict.fromkeys(shard, file)
        total += data_bytes
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


@pytest.mark.parametrize("tied", [False, True])
def test_loading_costs_little_more_than_the_checkpoint(tmp_path, tied):
    config = json.loads((ROOT / "bench/configs/solar-like.json").read_text()) | {"tie_word_embeddings": tied}
    if tied:
        config["vocab_size"] = 131072  # a third of the whole: a second copy of the head would show
    checkpoint_bytes = write_sharded(tmp_path / "model", config)
    assert checkpoint_bytes >= 1_500_000_000
    cache_bytes = 64 << 20
    process = subprocess.Popen([BINARY, "logits", "--model-id", tmp_path / "model", "--token-ids", "1,2,3", "--output",
                                tmp_path / "logits.safetensors", "--kv-cache-memory", str(cache_bytes)])
    _, status, usage = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    peak_bytes = usage.ru_maxrss << 10
    print(f"peak {peak_bytes / 1e9:.3f} GB for {checkpoint_bytes / 1e9:.3f} GB of weights")
    assert checkpoint_bytes < peak_bytes <= 1.15 * checkpoint_bytes + cache_bytes


def test_a_prompt_of_16384_tokens_costs_under_64_mib(tiny_folder, tmp_path):
    """In one step, as the worst case: chunks only make it less."""
    (tmp_path / "adapters").mkdir()
    (tmp_path / "model").mkdir()
    for file in (tiny_folder / "model").iterdir():
        (tmp_path / "model" / file.name).symlink_to(file)
    config = json.loads((tiny_folder / "model" / "config.json").read_text()) | {"max_position_embeddings": 16400}
    (tmp_path / "model" / "config.json").unlink()
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    running = Server(tmp_path, "--max-total-tokens", "16390", "--max-batch-prefill-tokens", "16384")
    try:
        running.generate("x", max_new_tokens=2)
        prompt = "x" * 16384
        tokens = len(requests.post(running.url + "/tokenize", json={"inputs": prompt}, timeout=60).json())
        prompt = prompt * (16384 // tokens) if tokens < 16384 else prompt
        before_kib = running.status("VmRSS")
        answer = running.generate(prompt, max_new_tokens=1)
        assert answer["details"]["prompt_tokens"] == 16384
        grown_bytes = (running.status("VmHWM") - before_kib) << 10
        cache_bytes = 16384 * 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"] * 4
        print(f"{grown_bytes / 2**20:.1f} MiB, {cache_bytes / 2**20:.1f} MiB of them cache")
        assert grown_bytes - cache_bytes < 64 << 20
    finally:
        assert running.stop() == 0


def test_answers_of_tokenize_that_nobody_reads_cost_little(own_server):
    """A token takes 50 bytes of the answer: one is held, however many have been asked for."""
    server = own_server()
    body = json.dumps({"inputs": "x" * (256 << 10)}).encode()
    assert len(requests.post(server.url + "/tokenize", data=body, headers=JSON, timeout=60).content) > 10 << 20
    before_kib = server.status("VmRSS")
    head = f"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    unread = []
    for _ in range(40):
        unread.append(socket.create_connection(("127.0.0.1", server.port)))
        unread[-1].sendall(head.encode() + body)
    time.sleep(3)  # each answer takes a fraction of a second
    assert requests.get(server.url + "/health", timeout=60).status_code == 200
    grown_mib = (server.status("VmRSS") - before_kib) / 1024
    for connection in unread:
        connection.close()
    print(f"{grown_mib:.0f} MiB for {len(unread)} unread answers")
    assert grown_mib < 128
    refused = requests.post(server.url + "/tokenize", json={"inputs": "x" * (1 << 20)}, timeout=60)
    assert refused.status_code == 422 and "262144 bytes" in refused.text
