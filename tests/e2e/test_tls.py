"""HTTPS: what is served is what plain HTTP serves, to the clients that users have."""

import asyncio
import re
import shutil
import socket
import ssl
import subprocess

import httpx2
import openai
import pytest
import requests
from certificates import Authority, openssl
from conftest import ADAPTERS, BINARY, ROOT, Server
from streams import Stream
from wire import Wire, eventually, post_head

PROMPT = "The quick brown fox"


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def issued(authority):
    return authority.issue("server")


@pytest.fixture(scope="module")
def secure(tiny_folder, authority, issued):
    running = Server(tiny_folder, "--tls-cert-file", str(issued[0]), "--tls-key-file", str(issued[1]), "--log-level", "debug",
                     verify=str(authority.pem))
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def trust(authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority.pem)


def test_the_log_says_so(secure):
    assert f"listening on https://127.0.0.1:{secure.port}" in secure.logged()
    assert "TLS: certificate of CN=server, until " in secure.logged()


def test_answers_are_those_of_plain_http(server, secure):
    for adapter in (None, ADAPTERS[1]):
        assert secure.generate(PROMPT, adapter_id=adapter) == server.generate(PROMPT, adapter_id=adapter)
    text = {"inputs": "Many small fish swim as one shoal. " * 500}
    plain = requests.post(server.url + "/tokenize", json=text, timeout=60)
    tls = requests.post(secure.url + "/tokenize", json=text, timeout=60, **secure.tls)
    assert plain.content == tls.content and len(tls.content) > 16384, "more than a record"


@pytest.mark.parametrize("path", ["/generate_stream", "/v1/completions"])
def test_streams_are_byte_for_byte_those_of_plain_http(server, secure, path):
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 60, "details": True},
            "model": "", "prompt": PROMPT, "max_tokens": 60, "stream": True, "logprobs": 5}
    texts = [requests.post(each.url + path, json=body, timeout=60, **each.tls).text for each in (server, secure)]
    plain, tls = (re.sub(r'"id":"cmpl-[^"]*"|"created":\d+', "", text) for text in texts)
    assert plain == tls and plain.count("data: ") >= 60


def test_the_openai_client_with_an_authority_of_their_own(server, secure, trust):
    with httpx2.Client(verify=trust) as web:
        client = openai.OpenAI(base_url=secure.url + "/v1", api_key="none", max_retries=0, http_client=web)
        expected = server.generate(PROMPT, max_new_tokens=25)["generated_text"]
        assert client.completions.create(model="", prompt=PROMPT, max_tokens=25, temperature=0).choices[0].text == expected
        chunks = client.completions.create(model="", prompt=PROMPT, max_tokens=25, temperature=0, stream=True)
        assert "".join(chunk.choices[0].text for chunk in chunks) == expected
        for _ in range(3):
            assert web.get(secure.url + "/ping").status_code == 200
    with pytest.raises(httpx2.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx2.get(secure.url + "/ping")


def test_versions_and_protocols(secure, authority):
    for version, spoken in (("TLSv1_2", "TLSv1.2"), ("TLSv1_3", "TLSv1.3")):
        context = ssl.create_default_context(cafile=authority.pem)
        context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
        context.set_alpn_protocols(["h2", "http/1.1"])
        with Wire(secure.port, context=context) as wire:
            assert (wire.socket.version(), wire.socket.selected_alpn_protocol()) == (spoken, "http/1.1")
            assert wire.socket.compression() is None
            wire.send(b"GET /ping HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            assert b"HTTP/1.1 200" in wire.rest(), "and ends with a goodbye, or rest() throws"
    old = ssl.create_default_context(cafile=authority.pem)
    old.minimum_version, old.maximum_version = ssl.TLSVersion.MINIMUM_SUPPORTED, ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(ssl.SSLError, match="(?i)version"):
        Wire(secure.port, context=old)


def test_plain_http_is_closed_and_others_are_served(secure):
    with Wire(secure.port) as wire:
        wire.send(b"GET /ping HTTP/1.1\r\nhost: x\r\n\r\n")
        assert wire.rest() == b""
    eventually(lambda: "TLS handshake with 127.0.0.1:" in secure.logged() and "http request" in secure.logged())
    assert len(secure.token_ids("x", max_new_tokens=3)) == 3


def test_two_hundred_connections(secure, server, trust):
    expected = server.token_ids("x", max_new_tokens=20)

    async def one() -> list[int]:
        stream = await Stream(secure.port, "/generate_stream", {"inputs": "x", "parameters": {"max_new_tokens": 20}},
                              context=trust).open()
        await gate.wait()
        await stream.send()
        assert await stream.read_head() == 200
        ids = [event["token"]["id"] async for event in stream.events()]
        stream.drop()
        return ids

    async def run():
        tasks = [asyncio.create_task(one()) for _ in range(200)]
        gate.set()
        return await asyncio.gather(*tasks)

    gate = asyncio.Event()
    assert all(ids == expected for ids in asyncio.run(run()))


@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/v1/completions"])
@pytest.mark.parametrize("rudely", [False, True])
def test_a_client_that_leaves_cancels(secure, trust, path, rudely):
    body = {"inputs": "x", "parameters": {"max_new_tokens": 1000}, "model": "", "prompt": "x", "max_tokens": 1000, "n": 1,
            "stream": path.startswith("/v1")}

    async def run():
        streams = [await Stream(secure.port, path, body, context=trust).open() for _ in range(8)]
        for stream in streams:
            await stream.send()
        if path != "/generate":
            await streams[0].read_head()
        for stream in streams:
            stream.drop(rudely=rudely)

    cancelled = secure.metric("shoal_requests_cancelled")
    asyncio.run(run())
    secure.wait_idle(60)
    assert secure.metric("shoal_requests_cancelled") > cancelled


def test_slow_readers_and_slow_handshakes_are_ended(tiny_folder, authority, issued, trust, tmp_path):
    log = tmp_path / "access.log"
    running = Server(tiny_folder, "--ssl-certfile", str(issued[0]), "--ssl-keyfile", str(issued[1]), "--access-log", str(log),
                     "--header-timeout", "0.5", "--write-timeout", "0.5", "--max-stream-buffer-bytes", "64KiB",
                     verify=str(authority.pem))
    try:
        with Wire(running.port) as silent, Wire(running.port) as dripping:
            dripping.send(b"\x16\x03\x01\x3f\xff\x01")
            dripping.drip(b"x" * 60, pause_s=0.02)
            assert silent.rest() == b""
        with Wire(running.port, context=trust) as wire:
            wire.send(b"GET /ping HTTP/1.1\r\nx: ")
            assert wire.answer().status == 408
        body = (b'{"model":"","prompt":"x","max_tokens":1000,"n":8,"logprobs":20,"stream":true,"ignore_eos":true}')
        with Wire(running.port, context=trust, receive_bytes=4096) as wire:
            wire.send(post_head("/v1/completions", f"content-length: {len(body)}") + body)
            eventually(lambda: '"path":"/v1/completions","status":200' in log.read_text())
            assert '"complete":false' in log.read_text()
        running.wait_idle(60)
    finally:
        assert running.stop() == 0


def test_a_drain_lets_streams_end(tiny_folder, authority, issued, trust):
    running = Server(tiny_folder, "--tls-cert-file", str(issued[0]), "--tls-key-file", str(issued[1]), verify=str(authority.pem))
    handshaking = socket.create_connection(("127.0.0.1", running.port))

    async def run() -> int:
        stream = await Stream(running.port, "/generate_stream", {"inputs": "x", "parameters": {"max_new_tokens": 500}},
                              context=trust).open()
        await stream.send()
        await stream.read_head()
        running.terminate()
        return len([event async for event in stream.events()])

    assert asyncio.run(run()) == 500
    assert running.process.wait(60) == 0
    handshaking.close()
    assert running.stop() == 0


def test_client_certificates(tiny_folder, authority, issued, tmp_path):
    clients = Authority(tmp_path, "clients")
    certificate, key = clients.issue("client-1")
    running = Server(tiny_folder, "--tls-cert-file", str(issued[0]), "--tls-key-file", str(issued[1]), "--tls-client-ca-file",
                     str(clients.pem), verify=str(authority.pem), cert=(str(certificate), str(key)))
    try:
        assert len(running.token_ids("x", max_new_tokens=3)) == 3
        for other in (None, tuple(map(str, authority.issue("stranger")))):
            with pytest.raises(requests.RequestException):
                requests.get(running.url + "/ping", timeout=60, verify=str(authority.pem), cert=other)
        assert len(running.token_ids("x", max_new_tokens=3)) == 3
    finally:
        assert running.stop() == 0


def serial(port: int, trust: ssl.SSLContext) -> str:
    with Wire(port, context=trust) as wire:
        return wire.socket.getpeercert()["serialNumber"]


def test_certificates_are_replaced_while_it_runs(tiny_folder, authority, trust, tmp_path):
    first, second = authority.issue("first"), authority.issue("second")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    shutil.copy(first[0], certificate)
    shutil.copy(first[1], key)
    running = Server(tiny_folder, "--tls-cert-file", str(certificate), "--tls-key-file", str(key), verify=str(authority.pem))
    try:
        before = serial(running.port, trust)
        shutil.copy(second[0], certificate)
        eventually(lambda: "TLS stays as it was: TLS key file" in running.logged())
        assert serial(running.port, trust) == before
        shutil.copy(second[1], key)
        eventually(lambda: serial(running.port, trust) != before)
        assert "TLS: certificate of CN=second" in running.logged()
        assert len(running.token_ids("x", max_new_tokens=3)) == 3
    finally:
        assert running.stop() == 0


def test_what_cannot_be_used_is_bad_usage_in_one_line(authority, issued, tmp_path):
    certificate, key = map(str, issued)
    other_key = str(authority.issue("other")[1])
    encrypted, text, pipe = (str(tmp_path / name) for name in ("encrypted.key", "text", "pipe"))
    openssl("ec", "-in", key, "-aes128", "-passout", "pass:s3cr3t", "-out", encrypted)
    (tmp_path / "text").write_text("nothing")
    subprocess.run(["mkfifo", pipe], check=True)
    for flags, named in [
        (["--tls-cert-file", certificate], "--tls-key-file is missing"),
        (["--tls-key-file", key], "--tls-cert-file is missing"),
        (["--tls-client-ca-file", certificate], "--tls-cert-file is missing"),
        (["--tls-cert-file", "/no/such", "--tls-key-file", key], "TLS certificate file /no/such: No such file or directory"),
        (["--tls-cert-file", certificate, "--tls-key-file", "/no/such"], "TLS key file /no/such: No such file or directory"),
        (["--tls-cert-file", pipe, "--tls-key-file", key], f"TLS certificate file {pipe}: is no regular file"),
        (["--tls-cert-file", text, "--tls-key-file", key], f"TLS certificate file {text}: holds no certificate in PEM"),
        (["--tls-cert-file", certificate, "--tls-key-file", text], f"TLS key file {text}: holds no private key in PEM"),
        (["--tls-cert-file", certificate, "--tls-key-file", other_key], f"TLS key file {other_key}: the key does not fit"),
        (["--tls-cert-file", certificate, "--tls-key-file", encrypted], f"TLS key file {encrypted}: is encrypted"),
        (["--tls-cert-file", certificate, "--tls-key-file", key, "--tls-client-ca-file", text], f"TLS client CA file {text}: holds no"),
    ]:
        ended = subprocess.run([BINARY, "serve", "--model-id", ROOT / "models/solar", "--port", "0", *flags], capture_output=True,
                               text=True, timeout=60, check=False, stdin=subprocess.DEVNULL)
        assert ended.returncode == 2, (flags, ended)
        assert named in ended.stderr and len(ended.stderr.splitlines()) == 1, ended
