"""Bytes that no client should send, and values that no field can mean: the documented refusal, and the server lives on."""

import json

import pytest
import requests
from wire import Wire, post_head

GENERATE = json.dumps({"inputs": "x", "parameters": {"max_new_tokens": 2}}).encode()


def chunked(*parts: bytes) -> bytes:
    return post_head("/generate", "transfer-encoding: chunked") + b"".join(parts)


@pytest.mark.parametrize(("status", "sent"), [
    # NUL
    (400, b"GET /pi\0ng HTTP/1.1\r\nhost: x\r\n\r\n"),
    (400, b"GET /ping HTTP/1.1\r\nho\0st: x\r\n\r\n"),
    (400, b"GET /ping HTTP/1.1\r\nhost: x\0y\r\n\r\n"),
    (400, post_head("/generate", "content-length: 20") + b'{"inputs":\0"xxxxxxx"}'[:20]),
    # headers
    (400, b"GET /ping HTTP/1.1\r\nhost: x\r\nno colon\r\n\r\n"),
    (400, b"GET /ping HTTP/1.1\r\n: empty\r\n\r\n"),
    (400, b"GET /ping HTTP/1.1\r\nhost : x\r\n\r\n"),
    (400, b"GET /ping HTTP/1.1\r\nhost: x\r\nx: a\rb\r\n\r\n"),
    (431, b"GET /ping HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 100_000 + b"\r\n\r\n"),
    # versions
    (505, b"GET /ping HTTP/2.0\r\nhost: x\r\n\r\n"),
    (505, b"GET /ping HTTP/1.2\r\nhost: x\r\n\r\n"),
    (505, b"GET /ping HTTP/0.9\r\nhost: x\r\n\r\n"),
    (505, b"GET /ping HTTP/1\r\nhost: x\r\n\r\n"),
    (505, b"GET /ping HTTPS/1.1\r\nhost: x\r\n\r\n"),
    (400, b"GET /ping\r\n\r\n"),
    (505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    # lengths
    (400, post_head("/generate", "content-length: 18446744073709551616")),
    (413, post_head("/generate", "content-length: 18446744073709551615")),
    (400, post_head("/generate", "content-length: +5") + b"{}   "),
    (400, post_head("/generate", "content-length: 5, 6") + b"{}   "),
    (400, post_head("/generate", "content-length: 0x10")),
    (400, post_head("/generate", "content-length: 5", "content-length: 6") + b"{}    "),
    (400, post_head("/generate", "content-length: 5", "transfer-encoding: chunked") + b"0\r\n\r\n"),
    (400, post_head("/generate", "transfer-encoding: chunked", "content-length: 5") + b"0\r\n\r\n"),
    # chunks
    (400, chunked(b"zz\r\n")),
    (400, chunked(b"-1\r\nx\r\n")),
    (400, chunked(b"\r\n")),
    (400, chunked(b"fffffffffffffffff\r\n")),
    (413, chunked(b"ffffffff\r\n")),
    (400, chunked(b"2\r\n{}}\r\n0\r\n\r\n")),
    (400, chunked(b"1\r\n{2\r\n}}\r\n0\r\n\r\n")),
])
def test_bytes_that_are_no_request(server, status, sent):
    with Wire(server.port) as wire:
        wire.send(sent)
        answer = wire.answer()
        assert answer.status == status, answer.body
        assert answer.json["error_code"] == {400: "malformed_request", 413: "payload_too_large", 431: "headers_too_large",
                                             505: "http_version"}[status]
    assert requests.get(server.url + "/health", timeout=60).status_code == 200


def test_pipelined_requests_are_answered_in_order(server):
    with Wire(server.port) as wire:
        post = post_head("/generate", f"content-length: {len(GENERATE)}") + GENERATE
        stream = post.replace(b"/generate ", b"/generate_stream ")
        wire.send(b"GET /ping HTTP/1.1\r\nhost: x\r\n\r\n" + post + stream + b"GET /no HTTP/1.1\r\nhost: x\r\n\r\n" +
                  post.replace(b"host: x", b"host: x\r\nconnection: close"))
        received = wire.rest()
    statuses = [int(part[1:4]) for part in received.split(b"HTTP/1.1")[1:]]
    assert statuses == [200, 200, 200, 404, 200], received


def test_a_refused_request_takes_its_pipeline_with_it(server):
    """What follows bytes that could not be understood may be anything: an attacker's request inside another's body."""
    smuggled = b"GET /info HTTP/1.1\r\nhost: x\r\n\r\n"
    for sent in (post_head("/generate", "content-length: 5", "transfer-encoding: chunked") + b"0\r\n\r\n",
                 chunked(b"zz\r\n"), b"GET /ping HTTP/1.1\r\nno colon\r\n\r\n"):
        with Wire(server.port) as wire:
            wire.send(sent + smuggled)
            received = wire.rest()
        assert received.count(b"HTTP/1.1 ") == 1 and received.startswith(b"HTTP/1.1 400"), received


@pytest.mark.parametrize("path", ["/ping", "/info", "/health", "/v1/models", "/metrics"])
def test_head_is_get_without_its_body(server, path):
    whole = requests.get(server.url + path, timeout=60)
    with Wire(server.port) as wire:
        wire.send(f"HEAD {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        received = wire.rest().decode()
    head, body = received.split("\r\n\r\n", 1)
    assert head.startswith("HTTP/1.1 200") and body == ""
    if path != "/metrics":  # which counts on
        assert f"content-length: {len(whole.content)}\r\n" in head + "\r\n"


@pytest.mark.parametrize(("method", "path", "status", "allow"), [
    ("TRACE", "/generate", 405, "POST"), ("TRACE", "/ping", 405, "GET,HEAD"), ("PUT", "/", 405, "GET,HEAD,POST"),
    ("DELETE", "/v1/models/x", 405, "GET,HEAD"), ("CONNECT", "/ping", 405, "GET,HEAD"), ("BREW", "/ping", 405, "GET,HEAD"),
    ("HEAD", "/generate", 405, "POST"), ("TRACE", "/nowhere", 404, None), ("OPTIONS", "/nowhere", 404, None),
    ("OPTIONS", "/generate", 200, None),
])
def test_methods(server, method, path, status, allow):
    with Wire(server.port) as wire:
        wire.send(f"{method} {path} HTTP/1.1\r\nhost: x\r\nx-secret: s3cr3t\r\n\r\n".encode())
        answer = wire.answer(method)
    assert answer.status == status and answer.headers.get("allow") == allow
    assert b"s3cr3t" not in answer.body, "TRACE repeats nothing"


def generate(server, body: str | bytes) -> requests.Response:
    data = body if isinstance(body, bytes) else body.encode()
    return requests.post(server.url + "/generate", data=data, headers={"content-type": "application/json"}, timeout=60)


@pytest.mark.parametrize("body", ["[" * 10_000 + "]" * 10_000, '{"inputs":' * 10_000 + '"x"' + "}" * 10_000,
                                  '{"inputs":"x","parameters":{"logit_bias":' + '{"1":' * 10_000 + "1" + "}" * 10_002])
def test_nesting_is_refused_by_its_depth(server, body):
    answer = generate(server, body)
    assert answer.status_code == 400 and answer.json()["error_code"] == "malformed_request"
    assert "nested deeper than 64 levels" in answer.json()["error"]


@pytest.mark.parametrize(("field", "number", "status"), [
    ("temperature", "1e400", 400), ("temperature", "-1e400", 400), ("top_p", "1e400", 400), ("seed", "1e400", 400),
    ("seed", "18446744073709551616", 422), ("seed", "-1", 422), ("seed", "1.5", 422),
    ("max_new_tokens", "18446744073709551616", 422), ("max_new_tokens", "9223372036854775808", 422),
    ("max_new_tokens", "-0", 422), ("max_new_tokens", "1e18", 422), ("top_k", "18446744073709551616", 422),
    ("top_k", "-0", 422), ("top_k", "2147483648", 422), ("temperature", "-1", 422), ("temperature", "1e39", 422),
    ("truncate", "18446744073709551616", 422), ("priority", "9223372036854775808", 422), ("best_of", "4294967297", 422),
    ("top_n_tokens", "4294967297", 422), ("return_k_alternatives", "-9223372036854775809", 422), ("min_tokens", "1e400", 400),
])
def test_numbers_that_are_out_of_every_range(server, field, number, status):
    answer = generate(server, f'{{"inputs":"x","parameters":{{"max_new_tokens":1,"{field}":{number}}}}}'.replace(
        '"max_new_tokens":1,"max_new', '"max_new'))
    assert answer.status_code == status, answer.text
    assert status == 400 or field in answer.json()["error"], answer.text


@pytest.mark.parametrize("adapter_id", ["ten\u00e4nt-0", "\u6f22\u5b57", "\U0001f44d", "tenant-0\u202e", "tenant-0\u0000", "a\nb",
                                        "\u0130", "tenant-0 ", "%2e%2e/model", "x" * 10_000])
def test_adapter_ids_that_no_folder_has(server, adapter_id):
    answer = requests.post(server.url + "/generate", timeout=60,
                           json={"inputs": "x", "parameters": {"max_new_tokens": 1, "adapter_id": adapter_id}})
    assert answer.status_code in (422, 424), answer.text
    answer.json()["error"].encode()
    openai = requests.post(server.url + "/v1/completions", json={"prompt": "x", "max_tokens": 1, "model": adapter_id}, timeout=60)
    assert openai.status_code in (400, 404), openai.text
    encoded = requests.get(server.url + "/v1/models/" + requests.utils.quote(adapter_id, safe=""), timeout=60)
    assert encoded.status_code in (404, 431), encoded.text
