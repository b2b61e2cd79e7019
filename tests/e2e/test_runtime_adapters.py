"""Names for adapters that are loaded and unloaded while the server runs, as clients of vLLM do it."""

import concurrent.futures
import json
import shutil
import threading

import numpy as np
import pytest
import requests
from conftest import ADAPTERS, Server, event_json
from openai import OpenAI
from safetensors.numpy import load_file, save_file

PROMPT = "Once there was"
LONG_PROMPT = "The quick brown fox jumps over the lazy dog. Many small fish swim as one shoal. " * 3


def call(server, route: str, key: str | None = None, **body) -> requests.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return requests.post(f"{server.url}/v1/{route}_lora_adapter", json=body, headers=headers, timeout=60)


def load(server, name: str, path: str, key: str | None = None, **more) -> requests.Response:
    return call(server, "load", key, lora_name=name, lora_path=path, **more)


def unload(server, name: str, key: str | None = None) -> requests.Response:
    return call(server, "unload", key, lora_name=name)


def loaded(response: requests.Response) -> None:
    assert response.status_code == 200, response.text
    assert response.text.startswith("Success: ")


def refused(response: requests.Response, status: int, *words: str) -> dict:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    for word in words:
        assert word in error["message"], error
    return error


def models(server, key: str | None = None) -> dict[str, dict]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    listed = requests.get(server.url + "/v1/models", headers=headers, timeout=60).json()["data"]
    ids = [model["id"] for model in listed]
    assert len(ids) == len(set(ids))
    return {model["id"]: model for model in listed}


@pytest.fixture
def own_adapters(tiny_folder, tmp_path):
    """The tiny model with adapters that a test may change."""
    (tmp_path / "model").symlink_to(tiny_folder / "model")
    shutil.copytree(tiny_folder / "adapters", tmp_path / "adapters")
    return tmp_path


@pytest.fixture
def running(own_adapters):
    server = Server(own_adapters)
    yield server
    assert server.stop() == 0


def test_a_name_works_everywhere_until_it_is_unloaded(running, own_adapters):
    expected = running.token_ids(PROMPT, max_new_tokens=20, adapter_id="org/tenant-6")
    assert expected != running.token_ids(PROMPT, max_new_tokens=20)
    loaded(load(running, "support", "org/tenant-6"))
    loaded(load(running, "absolute", str(own_adapters / "adapters" / "org" / "tenant-6")))
    for name in ("support", "absolute"):
        assert running.token_ids(PROMPT, max_new_tokens=20, adapter_id=name) == expected
    client = OpenAI(base_url=running.url + "/v1", api_key="none")
    answers = [client.completions.create(model=model, prompt=PROMPT, max_tokens=20, temperature=0).choices[0].text
               for model in ("support", "org/tenant-6")]
    assert answers[0] == answers[1]
    chats = [client.chat.completions.create(model=model, messages=[{"role": "user", "content": PROMPT}], temperature=0,
                                            max_tokens=20).choices[0].message.content
             for model in ("support", "org/tenant-6")]
    assert chats[0] == chats[1]
    vectors = [client.embeddings.create(model=model, input=PROMPT).data[0].embedding
               for model in ("support", "org/tenant-6")]
    assert vectors[0] == vectors[1]
    merged = [running.token_ids(PROMPT, max_new_tokens=20, merged_adapters={"ids": [model, "tenant-0"], "weights": [1, 1]})
              for model in ("support", "org/tenant-6")]
    assert merged[0] == merged[1]
    listed = models(running)
    assert set(ADAPTERS) < set(listed)
    assert listed["support"]["root"] == "org/tenant-6"
    assert client.models.retrieve("support").id == "support"

    loaded(unload(running, "support"))
    assert "support" not in models(running)
    gone = requests.post(running.url + "/v1/completions", json={"model": "support", "prompt": "a"}, timeout=60)
    assert gone.status_code == 404
    assert gone.json()["error"]["code"] == "model_not_found"
    native = requests.post(running.url + "/generate", timeout=60,
                           json={"inputs": "a", "parameters": {"adapter_id": "support"}})
    assert native.status_code == 424
    assert native.json()["error_code"] == "adapter_not_found"
    refused(unload(running, "support"), 404, "'support' cannot be found")
    assert running.token_ids(PROMPT, max_new_tokens=20, adapter_id="org/tenant-6") == expected


def test_what_cannot_be_loaded_is_told_at_once(running, own_adapters):
    folder = own_adapters / "adapters"
    outside = own_adapters / "outside"
    shutil.copytree(folder / "tenant-1", outside)
    (folder / "link").symlink_to(outside)
    (folder / "empty").mkdir()
    shutil.copytree(folder / "tenant-1", folder / "other-model")
    weights = load_file(folder / "tenant-1" / "adapter_model.safetensors")
    name = next(iter(weights))
    weights[name] = np.zeros((weights[name].shape[0], weights[name].shape[1] + 3), weights[name].dtype)
    save_file(weights, folder / "other-model" / "adapter_model.safetensors")
    shutil.copytree(folder / "tenant-1", folder / "not-finite")
    weights = load_file(folder / "tenant-1" / "adapter_model.safetensors")
    weights[name] = np.full_like(weights[name], np.nan)
    save_file(weights, folder / "not-finite" / "adapter_model.safetensors")
    shutil.copytree(folder / "tenant-1", folder / "cut")
    whole = (folder / "cut" / "adapter_model.safetensors").read_bytes()
    (folder / "cut" / "adapter_model.safetensors").write_bytes(whole[:-100])

    refused(load(running, "x", "not-there"), 404, "'x' cannot be loaded", "'not-there' not found")
    for path in ("../outside", "tenant-1/../../outside", "/etc", str(outside), "link", "/", "."):
        error = refused(load(running, "x", path), 400, "lies outside the adapter folder")
        assert error["code"] == "adapter_invalid"
        assert path == str(outside) or str(own_adapters) not in error["message"], "no path of the server is told"
    refused(load(running, "x", "empty"), 404, "no adapter_config.json")
    refused(load(running, "x", "other-model"), 400, name.removeprefix("base_model.model.").split(".lora_")[0])
    refused(load(running, "x", "not-finite"), 400, "'x' cannot be loaded")
    refused(load(running, "x", "cut"), 400, "'x' cannot be loaded")
    refused(load(running, "x", "hub:org/name"), 400, "source 'hub' is not served")
    refused(load(running, "x", "s3://bucket/name"), 400, "source 's3' is not served")
    refused(call(running, "load", lora_name="x"), 400, "`lora_path`: missing field")
    refused(call(running, "load", lora_path="tenant-1"), 400, "`lora_name`: missing field")
    refused(call(running, "unload"), 400, "`lora_name`: missing field")
    refused(load(running, str(own_adapters / "model"), "tenant-1"), 400, "base model")
    refused(load(running, "tenant-0", "tenant-1"), 400, "'tenant-0' is the id of another adapter")
    refused(load(running, "./tenant-0", "tenant-1"), 400, "'./tenant-0' is the id of another adapter")
    bad = requests.post(running.url + "/v1/load_lora_adapter", data=b'{"lora_name":"\xff","lora_path":"tenant-1"}',
                        headers={"content-type": "application/json"}, timeout=60)
    assert bad.status_code == 400
    # Values are read by loads alone.
    assert set(models(running)) == {*ADAPTERS, "not-finite", str(own_adapters / "model")}
    running.wait_idle()


def test_a_name_that_is_taken_is_replaced_only_in_place(own_adapters):
    server = Server(own_adapters, "--prefix-caching")
    by_id = {name: server.token_ids(LONG_PROMPT, max_new_tokens=20, adapter_id=name) for name in ("tenant-1", "tenant-2")}
    assert by_id["tenant-1"] != by_id["tenant-2"]
    named = {"max_new_tokens": 20, "adapter_id": "support"}
    loaded(load(server, "support", "tenant-1"))
    assert server.token_ids(LONG_PROMPT, **named) == by_id["tenant-1"]
    error = refused(load(server, "support", "tenant-2"), 400, "'support' has already been loaded from 'tenant-1'")
    assert error["code"] == "adapter_already_loaded"
    assert server.token_ids(LONG_PROMPT, **named) == by_id["tenant-1"]
    assert server.generate(LONG_PROMPT, **named)["details"]["cached_tokens"] > 0
    loaded(load(server, "support", "tenant-2", load_inplace=True))
    assert server.token_ids(LONG_PROMPT, **named) == by_id["tenant-2"]
    # Other files under the same path.
    fresh = server.token_ids(LONG_PROMPT, max_new_tokens=20, adapter_id="tenant-3")
    folder = own_adapters / "adapters"
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(folder / "tenant-3" / name, folder / "new")
        (folder / "new").rename(folder / "tenant-2" / name)
    loaded(load(server, "support", "tenant-2", load_inplace=True))
    first = server.generate(LONG_PROMPT, **named)["details"]
    assert [token["id"] for token in first["tokens"]] == fresh
    # The cache goes by the weights: those of tenant-3 are these.
    assert server.generate(LONG_PROMPT, max_new_tokens=20, adapter_id="tenant-3")["details"]["cached_tokens"] > 0
    (folder / "tenant-2" / "adapter_model.safetensors").write_bytes(b"broken")
    refused(load(server, "support", "tenant-2", load_inplace=True), 400, "cannot be loaded")
    assert server.stop() == 0


def test_memory_of_what_is_unloaded_is_given_back(running):
    def adapters(tier: str) -> float:
        return running.metric(f'shoal_adapter_bytes{{tier="{tier}"}}')

    for i in range(4):
        loaded(load(running, f"name-{i}", f"tenant-{i}"))
        running.generate(PROMPT, max_new_tokens=3, adapter_id=f"name-{i}")
    assert adapters("device") > 0
    for i in range(4):
        loaded(unload(running, f"name-{i}"))
    running.wait_idle()
    assert adapters("device") == 0
    assert adapters("host") == 0


def stream_ids(server, **parameters) -> list[int]:
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 60, "ignore_eos_token": True, **parameters}}
    with requests.post(server.url + "/generate_stream", json=body, stream=True, timeout=120) as answer:
        events = [event_json(line) for line in answer.iter_lines() if line and not line.startswith(b":")]
    assert "error" not in events[-1], events[-1]
    return [event["token"]["id"] for event in events]


def test_streams_run_on_while_names_come_and_go(own_adapters):
    server = Server(own_adapters, "--prefix-caching")
    jobs = {name: stream_ids(server, adapter_id=name) for name in ADAPTERS}
    base = stream_ids(server)
    stop = threading.Event()

    def serve(worker: int) -> int:
        """A name of its own, unloaded and replaced while its streams run: each answers as its adapter alone."""
        name, count = f"name-{worker}", 0
        for turn in range(6):
            adapter = ADAPTERS[(worker + turn) % len(ADAPTERS)]
            loaded(load(server, name, adapter))
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                begun = threading.Event()

                def run(name=name, begun=begun) -> list[int]:
                    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 60, "ignore_eos_token": True,
                                                             "adapter_id": name}}
                    ids = []
                    with requests.post(server.url + "/generate_stream", json=body, stream=True, timeout=120) as answer:
                        for line in answer.iter_lines():
                            if line and not line.startswith(b":"):
                                event = event_json(line)
                                assert "error" not in event, event
                                ids.append(event["token"]["id"])
                                begun.set()
                    return ids

                answer = pool.submit(run)
                assert begun.wait(120) or answer.result()
                loaded(unload(server, name))
                refused(unload(server, name), 404)
                assert answer.result() == jobs[adapter], (worker, turn)
            count += 1
        return count

    def background() -> int:
        count = 0
        while not stop.is_set():
            assert stream_ids(server) == base
            count += 1
        return count

    with concurrent.futures.ThreadPoolExecutor(9) as pool:
        beside = pool.submit(background)
        try:
            assert list(pool.map(serve, range(8))) == [6] * 8
        finally:
            stop.set()
        assert beside.result() > 0
    server.wait_idle()
    assert server.metric("shoal_adapter_pinned_bytes") == 0
    assert server.stop() == 0


@pytest.fixture
def keyed(own_adapters, tmp_path):
    keys = {"keys": [{"key": "sk-a", "tenant": "a", "adapters": ["tenant-*", "mine-*"]},
                     {"key": "sk-b", "tenant": "b", "adapters": ["org/*", "mine-*"]},
                     {"key": "sk-b2", "tenant": "b"}]}
    (tmp_path / "keys.json").write_text(json.dumps(keys))
    server = Server(own_adapters, "--api-key-file", str(tmp_path / "keys.json"))
    yield server
    assert server.stop() == 0


def test_tenants_share_no_names(keyed, own_adapters):
    def text(model: str, key: str) -> requests.Response:
        return requests.post(keyed.url + "/v1/completions", timeout=60, headers={"authorization": f"Bearer {key}"},
                             json={"model": model, "prompt": PROMPT, "max_tokens": 20, "temperature": 0})

    def choices(response: requests.Response) -> list:
        assert response.status_code == 200, response.text
        return response.json()["choices"]

    assert load(keyed, "mine-x", "tenant-1").status_code == 401
    loaded(load(keyed, "mine-x", "tenant-1", key="sk-a"))
    refused(load(keyed, "mine-y", "tenant-1", key="sk-b"), 404, "adapter 'tenant-1' not found")
    refused(load(keyed, "other", "org/tenant-6", key="sk-b"), 404, "adapter 'other' not found")
    refused(load(keyed, "mine-y", "org/../tenant-1", key="sk-b"), 404)
    refused(load(keyed, "mine-y", str(own_adapters / "adapters" / "org" / "tenant-6"), key="sk-b"), 404)
    refused(text("mine-x", "sk-b"), 404)
    refused(unload(keyed, "mine-x", key="sk-b"), 404)
    assert "mine-x" not in models(keyed, "sk-b")
    # The same name for another adapter, beside the first tenant's.
    loaded(load(keyed, "mine-x", "org/tenant-6", key="sk-b"))
    assert choices(text("mine-x", "sk-a")) == choices(text("tenant-1", "sk-a"))
    assert choices(text("mine-x", "sk-b")) == choices(text("org/tenant-6", "sk-b"))
    assert choices(text("mine-x", "sk-a")) != choices(text("mine-x", "sk-b"))
    # Keys of one tenant share its names, as far as each may use them.
    loaded(load(keyed, "mine-z", "tenant-1", key="sk-b2"))
    refused(text("mine-z", "sk-b"), 404, "adapter 'mine-z' not found")
    assert "mine-z" not in models(keyed, "sk-b")
    assert "mine-z" in models(keyed, "sk-b2")
    loaded(unload(keyed, "mine-x", key="sk-b2"))
    refused(text("mine-x", "sk-b"), 404)
    assert choices(text("mine-x", "sk-a")) == choices(text("tenant-1", "sk-a"))


def test_the_header_names_a_tenant_where_there_are_no_keys(running):
    def loads(tenant: str, path: str) -> requests.Response:
        return requests.post(running.url + "/v1/load_lora_adapter", headers={"x-shoal-tenant": tenant},
                             json={"lora_name": "x", "lora_path": path}, timeout=60)

    loaded(loads("one", "tenant-1"))
    loaded(loads("two", "tenant-2"))
    refused(loads("two", "tenant-2"), 400, "has already been loaded from 'tenant-2'")
    refused(unload(running, "x"), 404)


def test_numbers_of_names_and_servers_without_adapters(tiny_folder, own_server, tmp_path):
    few = own_server("--max-runtime-adapters", "2")
    for name in ("a", "b"):
        loaded(load(few, name, "tenant-1"))
    assert refused(load(few, "c", "tenant-1"), 400, "2 may be loaded")["code"] == "too_many_adapters"
    loaded(unload(few, "a"))
    loaded(load(few, "c", "tenant-1"))
    off = own_server("--max-runtime-adapters", "0")
    assert refused(load(off, "a", "tenant-1"), 404, "--max-runtime-adapters")["code"] == "unknown_url"
    without = own_server(adapter_dir=False)
    refused(load(without, "a", "tenant-1"), 404, "--adapter-dir")
