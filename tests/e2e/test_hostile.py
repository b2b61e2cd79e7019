"""Requests that mean harm, or are broken: each gets its status, and the server lives on."""

import json
import socket
import time

import pytest
import requests
from conftest import ADAPTERS

MIB = 1 << 20


def post(server, path, body, content_type="application/json"):
    data = body if isinstance(body, (bytes, str)) else json.dumps(body)
    if isinstance(data, str):
        data = data.encode()
    return requests.post(server.url + path, data=data, headers={"content-type": content_type}, timeout=60)


def native(**parameters):
    return {"inputs": "x", "parameters": {"max_new_tokens": 2, **parameters}}


@pytest.mark.parametrize(("status", "error_type", "body"), [
    (400, "bad_request", ""),
    (400, "bad_request", "{"),
    (400, "bad_request", "[" * 100_000),
    (400, "bad_request", '{"inputs":' * 50_000),
    (400, "bad_request", b'{"inputs":"\xff\xfe"}'),
    (400, "bad_request", '{"inputs":"\\ud800"}'),
    (400, "bad_request", '{"inputs":"x","parameters":{"temperature":NaN}}'),
    (400, "bad_request", '{"inputs":"x","parameters":{"temperature":1e999}}'),
    (413, "payload_too_large", "x" * (2 * MIB + 1)),
    (422, "validation", {}),
    (422, "validation", []),
    (422, "validation", {"inputs": 5}),
    (422, "validation", {"inputs": ""}),
    (422, "validation", {"inputs": "x", "parameters": None}),
    (422, "validation", native(temperature="hot")),
    (422, "validation", native(temperature=-1)),
    (422, "validation", native(temperature=1e39)),
    (422, "validation", native(top_p=1.5)),
    (422, "validation", native(top_k=0)),
    (422, "validation", native(typical_p=1)),
    (422, "validation", native(max_new_tokens=0)),
    (422, "validation", native(max_new_tokens=-1)),
    (422, "validation", native(max_new_tokens=4294967295)),
    (422, "validation", native(seed=-1)),
    (422, "validation", native(stop=["a"] * 5)),
    (422, "validation", native(stop=[""])),
    (422, "validation", native(truncate=0)),
    (422, "validation", native(schema={"type": "object"})),
    (422, "validation", native(adapter_id="tenant-0", adapter_source="nowhere", top_k=0)),
    (422, "validation", native(adapter_id="a\r\nx-evil: 1")),
    (422, "validation", {"inputs": "fish " * 300_000}),
    (424, "generation", native(adapter_id="no-such")),
    (424, "generation", native(adapter_id="../model")),
    (424, "generation", native(adapter_id="/etc")),
    (424, "generation", native(adapter_id="tenant-0\u00e9")),
    (424, "generation", native(adapter_id="tenant-0", adapter_source="hub")),
    (424, "generation", native(adapter_id="tenant-0", adapter_source="s3")),
])
def test_native_statuses(server, status, error_type, body):
    response = post(server, "/generate", body)
    assert response.status_code == status, response.text
    answer = response.json()
    assert answer["error_type"] == error_type
    assert answer["error"]
    assert requests.get(server.url + "/health", timeout=60).status_code == 200


USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(("named", "fields"), [
    ("messages[0].content", {"messages": [{"role": "user"}]}),
    ("messages[1].content", {"messages": [USER, {"role": "user", "content": None}]}),
    ("schema", {"messages": [USER], "schema": {"type": "object"}}),
    ("tool_choice", {"messages": [USER], "tool_choice": "required"}),
    ("guided_json", {"messages": [USER], "guided_json": {"type": "strange"}}),
])
def test_chats_that_cannot_be_served_as_asked_name_the_field(server, named, fields):
    response = post(server, "/v1/chat/completions", {"model": "", "max_tokens": 2, **fields})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == named


@pytest.mark.parametrize("parameters", [
    {"temperature": 1e-30},
    {"temperature": 1e-4, "top_p": 1e-4, "do_sample": True},
    {"temperature": 3e38, "do_sample": True, "seed": 1},
    {"top_k": 2147483647, "seed": 18446744073709551615},
    {"repetition_penalty": 1e-30},
    {"repetition_penalty": 1e30},
    {"frequency_penalty": 2, "presence_penalty": -2},
    {"typical_p": 1e-6, "do_sample": True},
    {"stop": ["\u0000", "\U0001f44d"]},
    {"adapter_id": ""},
])
def test_extreme_values_are_served(server, parameters):
    response = post(server, "/generate", {"inputs": "x\u0000y", "parameters": {"max_new_tokens": 4, "details": True,
                                                                              **parameters}})
    assert response.status_code == 200, response.text
    assert response.json()["details"]["generated_tokens"] >= 1


@pytest.mark.parametrize("bytes_sent", [
    b"",
    b"\r\n\r\n\r\n",
    b"\x00" * 1000,
    b"GET /health",
    b"GET / HTTP/9.9\r\n\r\n",
    b"POST /generate HTTP/1.1\r\ncontent-length: 10\r\n\r\nabc",
    b"POST /generate HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    b"GET /health HTTP/1.1\r\nx: " + b"a" * 100_000 + b"\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00",
])
def test_broken_http_does_no_harm(server, bytes_sent):
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(bytes_sent)
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(10)
        while connection.recv(65536):
            pass
    assert requests.get(server.url + "/health", timeout=60).status_code == 200


def test_transport_statuses(server):
    assert post(server, "/generate", native(), "text/plain").status_code == 415
    assert requests.get(server.url + "/generate", timeout=60).status_code == 405
    assert requests.get(server.url + "/generate", timeout=60).headers["allow"] == "POST"
    assert requests.get(server.url + "/nowhere", timeout=60).status_code == 404
    assert requests.options(server.url + "/generate", headers={"origin": "http://x"}, timeout=60).status_code == 200


def test_a_bad_request_leaves_a_running_stream_alone(server):
    expected = server.token_ids("The quick brown fox", max_new_tokens=300)
    response = requests.post(server.url + "/generate_stream", stream=True, timeout=60,
                             json={"inputs": "The quick brown fox", "parameters": {"max_new_tokens": 300}})
    ids = []
    for line in response.iter_lines():
        if not line:
            continue
        ids.append(json.loads(line[6:])["token"]["id"])
        if len(ids) % 50 == 1:
            assert post(server, "/generate", native(adapter_id="no-such")).status_code == 424
            assert post(server, "/generate", "{").status_code == 400
    assert ids == expected


def test_bad_adapters_are_refused_by_name_and_not_listed(tiny_folder, server):
    config = '{"peft_type":"LORA","r":4,"lora_alpha":8}'
    weights = (tiny_folder / "adapters/tenant-0/adapter_model.safetensors").read_bytes().decode("latin-1")
    for name, reason, files in [
        ("broken-json", "adapter_config.json: malformed JSON: found parse error at line 1",
         {"adapter_config.json": "{", "adapter_model.safetensors": "x"}),
        ("no-weights", "adapter_model.safetensors: file: found No such file", {"adapter_config.json": config}),
        ("dora", "use_dora is true", {"adapter_config.json": config.replace("}", ',"use_dora":true}'),
                                     "adapter_model.safetensors": weights}),
        ("garbage", "adapter_model.safetensors: header length",
         {"adapter_config.json": config, "adapter_model.safetensors": "\xff" * 100}),
        ("other-model", "match no linear layer of the base model",
         {"adapter_config.json": config, "adapter_model.safetensors": weights.replace("q_proj", "x_proj")}),
    ]:
        folder = tiny_folder / "adapters" / name
        folder.mkdir()
        for file, text in files.items():
            (folder / file).write_bytes(text.encode("latin-1"))
        response = post(server, "/generate", native(adapter_id=name))
        assert response.status_code == 424, (name, response.text)
        answer = response.json()
        assert answer["error_code"].startswith("adapter_"), name
        assert answer["error"].startswith(f"Request failed during generation: adapter '{name}': "), answer
        assert reason in answer["error"], answer
        assert str(tiny_folder) not in answer["error"] and "exception" not in answer["error"], answer
        assert post(server, "/v1/completions", {"model": name, "prompt": "x"}).status_code in (400, 404)
    assert server.token_ids("x", max_new_tokens=2, adapter_id="tenant-0")
    server.wait_idle()
    time.sleep(2.1)  # the list of adapters is kept for two seconds
    listed = [model["id"] for model in requests.get(server.url + "/v1/models", timeout=60).json()["data"]]
    assert listed[1:] == sorted(ADAPTERS)
    assert requests.get(server.url + "/v1/models/dora", timeout=60).status_code == 404
