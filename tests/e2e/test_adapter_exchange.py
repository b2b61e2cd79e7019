"""More adapters than the device or the host has room for; adapters that are replaced, and kept."""

import concurrent.futures
import random
import shutil

import pytest
import requests
from conftest import ADAPTERS, Server

PROMPT = "Once there was"


@pytest.fixture
def own_adapters(tiny_folder, tmp_path):
    """The tiny model with adapters that a test may change."""
    (tmp_path / "model").symlink_to(tiny_folder / "model")
    shutil.copytree(tiny_folder / "adapters", tmp_path / "adapters")
    return tmp_path


def largest_file(folder) -> int:
    return max(path.stat().st_size for path in (folder / "adapters").rglob("adapter_model.safetensors"))


def by_tier(server, name: str, tier: str) -> float:
    return server.metric(f'{name}{{tier="{tier}"}}')


def test_answers_under_exchange_are_those_of_a_roomy_server(server, own_adapters):
    drawn = random.Random(5)
    jobs = [(f"{PROMPT} {i}", drawn.choice([None, *ADAPTERS])) for i in range(150)]
    expected = {job: server.token_ids(job[0], max_new_tokens=20, adapter_id=job[1]) for job in set(jobs)}
    largest = largest_file(own_adapters)
    small = Server(own_adapters, "--adapter-memory", str(2 * largest), "--adapter-host-memory", str(4 * largest),
                   "--adapter-cycle-time-s", "0.05")
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = pool.map(lambda job: small.token_ids(job[0], max_new_tokens=20, adapter_id=job[1]), jobs)
        for job, answer in zip(jobs, answers):
            assert answer == expected[job], job
    small.wait_idle()
    assert by_tier(small, "shoal_adapter_evictions", "device") > 20
    assert by_tier(small, "shoal_adapter_evictions", "host") > 5
    assert by_tier(small, "shoal_adapter_bytes", "device") <= by_tier(small, "shoal_adapter_limit_bytes", "device")
    assert small.metric("shoal_adapter_pinned_bytes") == 0
    assert small.metric("shoal_adapter_load_seconds") > 0
    assert small.stop() == 0


def test_an_adapter_replaced_on_disk_serves_the_next_request(own_adapters):
    running = Server(own_adapters, "--prefix-caching")
    options = {"max_new_tokens": 20, "adapter_id": "tenant-0"}
    before = running.token_ids(PROMPT, **options)
    other = running.token_ids(PROMPT, max_new_tokens=20, adapter_id="tenant-1")
    assert other != before
    folder = own_adapters / "adapters"
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(folder / "tenant-1" / name, folder / "new")
        (folder / "new").rename(folder / "tenant-0" / name)
    assert running.token_ids(PROMPT, **options) == other
    assert running.stop() == 0


def test_preloaded_adapters_stay_and_others_get_what_they_leave(own_adapters):
    folder = own_adapters / "adapters"
    sizes = {name: (folder / name / "adapter_model.safetensors").stat().st_size for name in ADAPTERS}
    names = sorted(ADAPTERS, key=sizes.get)
    largest, kept, fits = names[-1], names[-2], names[0]
    running = Server(own_adapters, "--preloaded-adapter-ids", kept, "--adapter-memory",
                     str(sizes[kept] + sizes[fits]))
    assert running.metric("shoal_adapters_loaded") == 1
    running.generate(PROMPT, max_new_tokens=3, adapter_id=fits)
    running.generate(PROMPT, max_new_tokens=3, adapter_id=kept)
    assert by_tier(running, "shoal_adapter_hits", "device") >= 1
    refused = requests.post(running.url + "/generate", timeout=60, json={
        "inputs": PROMPT, "parameters": {"max_new_tokens": 3, "adapter_id": largest}})
    assert refused.status_code == 424
    assert "beside 1 preloaded ones" in refused.text
    assert running.stop() == 0


def test_a_preloaded_adapter_that_cannot_be_had_ends_the_start(own_adapters):
    with pytest.raises(RuntimeError, match="ended with 1:\n(.*\n)*.*adapter nowhere: adapter 'nowhere' not found"):
        Server(own_adapters, "--preloaded-adapter-ids", "nowhere")
