"""Each limit of the HTTP server, set by its flag, acts as docs/flags.md and docs/errors.md say, and the server answers on."""

import json

import pytest
import requests
from wire import Wire, eventually, post_head

GENERATE = json.dumps({"inputs": "x", "parameters": {"max_new_tokens": 2}}).encode()


def refused(answer, status: int, code: str, text: str) -> None:
    assert answer.status == status, (answer.status, answer.body)
    assert answer.json["error_code"] == code and text in answer.json["error"], answer.body
    assert answer.headers["connection"] == "close"
    assert answer.headers["x-request-id"]


def still_answers(server) -> None:
    assert len(server.token_ids("x", max_new_tokens=3)) == 3


def test_max_body_bytes(own_server):
    server = own_server("--max-body-bytes", "1024")
    fits = json.dumps({"inputs": "x", "parameters": {"max_new_tokens": 1}}).encode().ljust(1024)
    assert requests.post(server.url + "/generate", data=fits, headers={"content-type": "application/json"},
                         timeout=60).status_code == 200
    too_large = "the body is larger than 1024 bytes"
    with Wire(server.port) as wire:  # refused by what it says, before it is sent
        wire.send(post_head("/generate", "content-length: 1025"))
        refused(wire.answer(), 413, "payload_too_large", too_large)
    with Wire(server.port) as wire:  # it does not say
        wire.send(post_head("/generate", "transfer-encoding: chunked") + b"401\r\n" + b" " * 1025 + b"\r\n0\r\n\r\n")
        refused(wire.answer(), 413, "payload_too_large", too_large)
    with Wire(server.port) as wire:  # a client that sends all before it reads is no reason for a reset
        wire.send(post_head("/v1/completions", f"content-length: {10 << 20}") + b" " * (10 << 20))
        answer = wire.answer()
        assert answer.status == 413 and answer.json["error"]["code"] == "payload_too_large"
    still_answers(server)


def test_a_larger_max_body_bytes_lets_ten_megabytes_in(own_server):
    server = own_server("--max-body-bytes", "16MiB")
    answer = requests.post(server.url + "/generate", json={"inputs": "fish " * (2 << 20)}, timeout=60)
    assert answer.status_code == 422 and answer.json()["error_code"] == "invalid_value", answer.text
    still_answers(server)


def test_max_header_bytes(own_server):
    server = own_server("--max-header-bytes", "1024")
    assert requests.get(server.url + "/ping", headers={"x": "a" * 700}, timeout=60).status_code == 200
    for request in (b"GET /ping HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 1024 + b"\r\n\r\n",
                    b"GET /ping HTTP/1.1\r\n" + b"".join(b"x-%d: a\r\n" % i for i in range(200)) + b"\r\n",
                    b"GET /" + b"a" * 1024 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
                    b"GET /ping HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 100_000 + b"\r\n\r\n"):
        with Wire(server.port) as wire:
            wire.send(request)
            refused(wire.answer(), 431, "headers_too_large", "the headers are too long")
    still_answers(server)


def test_max_connections(own_server):
    server = own_server("--max-connections", "3")

    def is_let_in(wire: Wire) -> bool:
        wire.send(b"GET /ping HTTP/1.1\r\nhost: x\r\n\r\n")
        return wire.answer().status == 200

    def three() -> list[Wire] | None:
        """None while the connections of the server's start are not gone."""
        wires = [Wire(server.port) for _ in range(3)]
        if all([is_let_in(wire) for wire in wires]):
            return wires
        for wire in wires:
            wire.socket.close()
        return None

    held = eventually(three)
    with Wire(server.port) as wire:
        wire.send(b"GET /ping HTTP/1.1\r\nhost: x\r\n\r\n")
        answer = wire.answer()
        refused(answer, 503, "too_many_connections", "too many connections are open")
        assert answer.headers["retry-after"] == "1"
    held.pop().socket.close()

    def has_room() -> bool:
        with Wire(server.port) as wire:
            return is_let_in(wire)

    eventually(has_room)
    for wire in held:
        wire.socket.close()
    eventually(has_room)
    still_answers(server)


def test_idle_timeout(own_server):
    server = own_server("--idle-timeout", "0.3")
    with Wire(server.port) as silent, Wire(server.port) as kept:
        kept.send(b"GET /ping HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"HTTP/1.1 200" in kept.rest(), "closed after the answer, without another"
        assert silent.rest() == b""
    still_answers(server)


def test_header_timeout_ends_a_drip(own_server):
    server = own_server("--header-timeout", "0.4")
    for begin in (b"G", b"GET /ping HTTP/1.1\r\nhost: x\r\nx: "):
        with Wire(server.port) as wire:
            wire.send(begin)
            refused(wire.answer(), 408, "request_timeout", "the request took too long")
    with Wire(server.port) as wire:
        wire.send(b"GET /ping HTTP/1.1\r\nhost: x\r\nx: ")
        wire.drip(b"a" * 60, pause_s=0.02)
        refused(wire.answer(), 408, "request_timeout", "the request took too long")
    still_answers(server)


def test_body_timeout_ends_a_drip(own_server):
    server = own_server("--body-timeout", "0.4")
    with Wire(server.port) as wire:
        wire.send(post_head("/generate", "content-length: 100") + b"{")
        refused(wire.answer(), 408, "request_timeout", "the request took too long")
    with Wire(server.port) as wire:
        wire.send(post_head("/v1/completions", "content-length: 1000"))
        wire.drip(b"{" * 60, pause_s=0.02)
        answer = wire.answer()
        assert answer.status == 408 and answer.json["error"]["code"] == "request_timeout"
    still_answers(server)


def cut_off(log, path: str) -> list[dict]:
    return [line for line in map(json.loads, log.read_text().splitlines()) if line["path"] == path and not line["complete"]]


def test_write_timeout_cuts_off_who_takes_nothing(own_server, tmp_path):
    log = tmp_path / "access.log"
    server = own_server("--write-timeout", "0.4", "--access-log", str(log))
    # Many times what sockets hold of it.
    body = json.dumps({"inputs": "a b " * 60_000}).encode()
    with Wire(server.port, receive_bytes=4096) as wire:
        wire.send(post_head("/tokenize", f"content-length: {len(body)}") + body)
        line = eventually(lambda: cut_off(log, "/tokenize"))[0]
        assert line["status"] == 200
    still_answers(server)


def test_max_stream_buffer_bytes_cuts_off_who_reads_too_slowly(own_server, tmp_path):
    log = tmp_path / "access.log"
    server = own_server("--max-stream-buffer-bytes", "64KiB", "--access-log", str(log))
    body = json.dumps({"model": "", "prompt": "x", "max_tokens": 1000, "n": 8, "logprobs": 20, "stream": True,
                       "ignore_eos": True}).encode()
    with Wire(server.port, receive_bytes=4096) as wire:
        wire.send(post_head("/v1/completions", f"content-length: {len(body)}") + body)
        eventually(lambda: cut_off(log, "/v1/completions"))
        assert "a client reads its stream too slowly: closed" in server.logged()
    server.wait_idle(60)
    whole = requests.post(server.url + "/v1/completions", timeout=60, headers={"content-type": "application/json"},
                          data=json.dumps({"model": "", "prompt": "x", "max_tokens": 100, "stream": True}))
    assert whole.text.endswith("data: [DONE]\n\n"), "who reads gets all"


def test_the_smallest_max_stream_buffer_bytes_cuts_off_no_reader(own_server):
    server = own_server("--max-stream-buffer-bytes", "1KiB")
    whole = requests.post(server.url + "/v1/completions", timeout=60, json={
        "model": "", "prompt": "x", "max_tokens": 100, "n": 4, "logprobs": 20, "stream": True, "ignore_eos": True})
    assert whole.text.endswith("data: [DONE]\n\n") and len(whole.content) > 100_000


def test_validation_workers(own_server):
    server = own_server("--validation-workers", "1")
    assert requests.get(server.url + "/info", timeout=60).json()["validation_workers"] == 1
    with Wire(server.port) as silent:
        silent.send(b"GET /ping HTTP/1.1\r\n")
        still_answers(server)  # one thread, and nobody holds it


PREFLIGHT = {"origin": "https://a.example", "access-control-request-method": "POST"}


def preflight(server, origin: str) -> dict:
    answer = requests.options(server.url + "/generate", headers={**PREFLIGHT, "origin": origin}, timeout=60)
    assert answer.status_code == 200
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control-")}


def test_cors_flags(own_server):
    server = own_server("--cors-allow-origin", "https://a.example", "--cors-allow-origin", "https://b.example",
                        "--cors-allow-method", "POST", "--cors-allow-header", "x-one", "--cors-allow-header", "x-two",
                        "--cors-expose-header", "x-request-id", "--cors-allow-credentials")
    for origin in ("https://a.example", "https://b.example"):
        assert preflight(server, origin) == {
            "access-control-allow-origin": origin, "access-control-allow-credentials": "true",
            "access-control-expose-headers": "x-request-id", "access-control-allow-methods": "POST",
            "access-control-allow-headers": "x-one, x-two", "access-control-max-age": "600"}
    for origin in ("https://c.example", "https://a.example.evil", "null", "https://A.example"):
        assert "access-control-allow-origin" not in preflight(server, origin), origin
    refusal = requests.post(server.url + "/generate", data="{", timeout=60,
                            headers={"origin": "https://a.example", "content-type": "application/json"})
    assert refusal.status_code == 400 and refusal.headers["access-control-allow-origin"] == "https://a.example"
    still_answers(server)


def test_cors_by_default(server):
    assert preflight(server, "https://any.example") == {
        "access-control-allow-origin": "*", "access-control-allow-methods": "GET, POST",
        "access-control-allow-headers": "content-type, authorization", "access-control-max-age": "600"}


@pytest.mark.parametrize("flag, value", [("--max-stream-buffer-bytes", "1"), ("--header-timeout", "-1"), ("--body-timeout", "nan"),
                                         ("--write-timeout", "1e9"), ("--validation-workers", "65"), ("--cors-allow-origin", "")])
def test_limits_that_no_server_can_keep_are_refused(own_server, flag, value):
    with pytest.raises(RuntimeError, match=flag) as ended:
        own_server(flag, value)
    assert "ended with 2" in str(ended.value)
