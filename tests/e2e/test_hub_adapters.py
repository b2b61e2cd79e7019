"""Adapters of the hub: fetched, resumed, cached, and kept from those who may not read them."""

import concurrent.futures
import os
import shutil
import socket
import subprocess
import time

import pytest
import requests
from conftest import Server, free_port
from fake_hub import FakeHub, written_by
from fake_web import Answer
from huggingface_hub import hf_hub_download

PROMPT = "Once there was"
WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
TOKEN, OTHER_TOKEN = "hf_may_read_it", "hf_of_somebody_else"


@pytest.fixture
def hub(tiny_folder):
    """With the public adapter acme/public, and acme/private for one of two tokens."""
    running = FakeHub()
    running.add("acme/public", tiny_folder / "adapters" / "tenant-1")
    running.add("acme/private", tiny_folder / "adapters" / "tenant-2", readers={TOKEN})
    running.tokens.add(OTHER_TOKEN)
    yield running
    running.close()
    assert running.faults + running.store.faults == []


@pytest.fixture
def serve(tiny_folder, tmp_path):
    """Starts servers of adapters from a hub, with one cache."""
    started = []

    def start(hub: FakeHub | str, *flags: str, env: dict | None = None) -> Server:
        endpoint = hub if isinstance(hub, str) else hub.url
        given = {"HF_ENDPOINT": endpoint, "HUGGINGFACE_HUB_CACHE": str(tmp_path / "cache"), **(env or {})}
        started.append(Server(tiny_folder, "--adapter-source", "hub", *flags, env=given))
        return started[-1]

    yield start
    for running in started:
        running.stop()


def ask(server: Server, adapter_id: str, headers: dict | None = None, **parameters) -> requests.Response:
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 10, "details": True, "adapter_id": adapter_id, **parameters}}
    return requests.post(server.url + "/generate", json=body, headers=headers, timeout=120)


def ids(answer: requests.Response) -> list[int]:
    assert answer.status_code == 200, answer.text
    return [token["id"] for token in answer.json()["details"]["tokens"]]


def local(server: Server, name: str) -> list[int]:
    return server.token_ids(PROMPT, max_new_tokens=10, adapter_id=name, adapter_source="local")


def eventually(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_adapter_of_the_hub_is_that_of_the_folder(hub, serve, tmp_path):
    server = serve(hub)
    assert ids(ask(server, "acme/public")) == local(server, "tenant-1")
    answer = ask(server, "acme/public")
    assert answer.headers["x-adapter-source"] == "hub"
    assert hub.store.count("GET") == 1
    asked = len(hub.seen)
    assert ids(ask(server, "acme/public")) == ids(answer)
    assert len(hub.seen) == asked, "what is in memory is not asked for"
    chat = requests.post(server.url + "/v1/completions", json={"model": "acme/public", "prompt": PROMPT}, timeout=60)
    assert chat.status_code == 200, chat.text
    # What was fetched is what huggingface_hub would have; and another server finds it.
    for file in (CONFIG, WEIGHTS):
        found = hf_hub_download("acme/public", file, cache_dir=tmp_path / "cache", local_files_only=True)
        assert os.path.islink(found)
    again = serve(hub)
    assert ids(ask(again, "acme/public")) == ids(answer)
    assert hub.store.count("GET") == 1, "it lies in the cache"
    leftovers = [path for path in (tmp_path / "cache").rglob("*") if path.name.endswith((".incomplete", ".new"))]
    assert leftovers == []


def test_a_cache_of_another_program_is_used(hub, serve, tmp_path):
    for file in (CONFIG, WEIGHTS):
        hf_hub_download("acme/public", file, cache_dir=tmp_path / "cache", endpoint=hub.url)
    fetched = hub.store.count("GET")
    server = serve(hub)
    assert ids(ask(server, "acme/public")) == local(server, "tenant-1")
    assert hub.store.count("GET") == fetched
    offline = serve(hub, env={"HF_HUB_OFFLINE": "1"})
    asked = len(hub.seen)
    assert ids(ask(offline, "acme/public")) == local(server, "tenant-1")
    refused = ask(offline, "acme/private")
    assert refused.status_code == 424 and "offline" in refused.json()["error"]
    assert refused.json()["error_code"] == "adapter_not_found"
    assert len(hub.seen) == asked, "offline means offline"


def test_adapters_of_the_hub_merge_and_private_ones_only_for_their_reader(hub, serve):
    server = serve(hub)

    def merge(ids: list[str], **parameters) -> requests.Response:
        merged = {"ids": ids, "weights": [0.5, 0.5], "merge_strategy": "ties", "density": 0.5}
        body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 10, "details": True, "merged_adapters": merged, **parameters}}
        return requests.post(server.url + "/generate", json=body, timeout=120)

    members = ["acme/public", "acme/private"]
    for token in ({}, {"api_token": OTHER_TOKEN}):
        refused = merge(members, **token)
        assert refused.status_code == 424 and "acme/private" in refused.json()["error"], refused.text
    merged = merge(members, api_token=TOKEN)
    assert ids(merged) == ids(merge(["tenant-1", "tenant-2"], adapter_source="local"))
    assert merged.headers["x-adapter-id"] == "acme/public,acme/private"
    assert merged.headers["x-adapter-source"] == "hub"
    # What its reader loaded is no other's, though it lies in memory and on disk.
    assert merge(members, api_token=OTHER_TOKEN).status_code == 424
    assert ids(merge(members, api_token=TOKEN)) == ids(merged)


def test_sources_that_nobody_turned_on_are_refused(hub, own_server):
    server = own_server(env={"HF_ENDPOINT": hub.url})
    for source in ("hub", "s3", "pbase"):
        answer = ask(server, "acme/public", adapter_source=source)
        assert answer.status_code == 424 and "is not served here" in answer.json()["error"]
    assert hub.seen == []


def test_a_private_adapter_is_for_those_who_may_read_it(hub, serve, tmp_path):
    server = serve(hub)
    for parameters in ({}, {"api_token": OTHER_TOKEN}, {"api_token": "hf_unknown"}):
        answer = ask(server, "acme/private", **parameters)
        assert answer.status_code == 424, answer.text
        assert answer.json()["error_code"] == "adapter_not_found"
    expected = local(server, "tenant-2")
    assert ids(ask(server, "acme/private", api_token=TOKEN)) == expected
    assert ids(ask(server, "acme/private", {"Authorization": f"Bearer {TOKEN}"})) == expected
    # It lies in memory and in the cache by now.
    for parameters in ({}, {"api_token": OTHER_TOKEN}, {"api_token": "hf_unknown"}):
        assert ask(server, "acme/private", **parameters).status_code == 424
    assert hub.store.count("GET") == 1
    # Without the hub the cache remembers whom it was for.
    offline = serve(hub, env={"HF_HUB_OFFLINE": "1"})
    assert ids(ask(offline, "acme/private", api_token=TOKEN)) == expected
    for parameters in ({}, {"api_token": OTHER_TOKEN}):
        assert ask(offline, "acme/private", **parameters).status_code == 424
    # No token is written anywhere.
    texts = [running.logged() for running in (server, offline)]
    texts += [path.read_bytes().decode(errors="replace") for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert not any(TOKEN in text for text in texts)


def test_the_servers_token_reads_for_requests_without_one_where_it_may(hub, serve):
    """By default what is preloaded alone: others of the hub's private adapters are their readers'."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        for flags, env in (([], {"LORAX_USE_GLOBAL_HF_TOKEN": "1"}), (["--hub-token-for-all"], {}),
                           (["--preloaded-adapter-ids", "acme/private"], {})):
            server = serve(hub, *flags, env={name: TOKEN, **env})
            assert ids(ask(server, "acme/private")) == local(server, "tenant-2")
            assert ask(server, "acme/private", api_token=OTHER_TOKEN).status_code == 424
            server.stop()
        server = serve(hub, "--preloaded-adapter-ids", "acme/public", env={name: TOKEN})
        assert ask(server, "acme/private").status_code == 424
        assert ask(server, "acme/private@main").status_code == 424
        assert ids(ask(server, "acme/private", api_token=TOKEN)) == local(server, "tenant-2")
        server.stop()


def test_a_preloaded_local_adapter_lends_the_token_to_none_of_the_hub(hub, tiny_folder, serve):
    folder = tiny_folder / "adapters" / "acme" / "private"
    shutil.copytree(tiny_folder / "adapters" / "tenant-1", folder)
    try:
        server = serve(hub, "--preloaded-adapter-source", "local", "--preloaded-adapter-ids", "acme/private",
                       env={"HF_TOKEN": TOKEN})
        assert ids(ask(server, "acme/private", adapter_source="local")) == local(server, "tenant-1")
        assert ask(server, "acme/private").status_code == 424
    finally:
        shutil.rmtree(folder.parent)


def test_a_key_that_is_no_token_of_the_hub_is_not_sent_there(hub, serve):
    server = serve(hub)
    assert ids(ask(server, "acme/public", {"Authorization": "Bearer sk-anything"})) == local(server, "tenant-1")
    guarded = serve(hub, "--api-key", "hf_the_servers_own")
    assert ask(guarded, "acme/public", {"Authorization": "Bearer hf_the_servers_own"}).status_code == 200
    assert not any("authorization" in seen.headers for seen in hub.seen)
    assert ask(server, "acme/public", api_token="hf_x\r\nX-Evil: 1").status_code == 422


def test_revisions(hub, serve, tiny_folder):
    first = hub.add("acme/public", tiny_folder / "adapters" / "tenant-3", revision="v/1")
    server = serve(hub)
    assert ids(ask(server, "acme/public@v/1")) == local(server, "tenant-3")
    assert ids(ask(server, f"acme/public@{first}")) == local(server, "tenant-3")
    assert ids(ask(server, "acme/public@main")) == local(server, "tenant-1")
    answer = ask(server, "acme/public@v2")
    assert answer.status_code == 424 and "no revision 'v2'" in answer.json()["error"]
    # Another server sees where a branch has moved.
    hub.add("acme/public", tiny_folder / "adapters" / "tenant-4")
    assert ids(ask(serve(hub), "acme/public")) == local(server, "tenant-4")


def test_a_repository_that_was_renamed(hub, serve):
    hub.moved["acme/old"] = "acme/private"
    server = serve(hub)
    assert ids(ask(server, "acme/old", api_token=TOKEN)) == local(server, "tenant-2")


def test_a_download_that_is_cut_goes_on_where_it_ended(hub, serve, tiny_folder):
    server = serve(hub)
    size = (tiny_folder / "adapters" / "tenant-1" / WEIGHTS).stat().st_size
    hub.store.cuts = [size // 3, size // 3, 0]
    assert ids(ask(server, "acme/public")) == local(server, "tenant-1")
    begins = [int(seen.headers.get("range", "bytes=0-")[6:-1]) for seen in hub.store.seen]
    assert begins[:3] == [0, size // 3, size // 3 * 2] and len(begins) == 4, begins


def test_what_another_died_over_is_resumed_and_what_is_damaged_fetched_anew(hub, serve, tiny_folder, tmp_path):
    server = serve(hub)
    body = (tiny_folder / "adapters" / "tenant-1" / WEIGHTS).read_bytes()
    blobs = tmp_path / "cache" / "models--acme--public" / "blobs"
    name = hub.store.address(body).split("/blobs/")[1].split("?")[0]
    for beginning, begins in ((body[:1000], [1000]), (b"x" * 1000, [1000, 0]), (b"x" * (len(body) + 1), [0])):
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        blobs.mkdir(parents=True)
        (blobs / f"{name}.incomplete").write_bytes(beginning)
        hub.store.seen.clear()
        fresh = serve(hub)
        assert ids(ask(fresh, "acme/public")) == local(server, "tenant-1")
        assert [int(seen.headers.get("range", "bytes=0-")[6:-1]) for seen in hub.store.seen] == begins
        fresh.stop()


def test_a_file_that_is_not_what_was_promised_is_refused(hub, serve, tiny_folder):
    server = serve(hub)
    body = (tiny_folder / "adapters" / "tenant-1" / WEIGHTS).read_bytes()
    hub.store.address(body)
    name = next(iter(hub.store.files))
    for wrong, text in ((body[:-1] + b"?", "SHA-256"), (body + b"?", "longer")):
        address = hub.store.address

        def lie(right: bytes, wrong=wrong, address=address) -> str:
            found = address(right)
            hub.store.files[name] = wrong
            return found

        hub.store.address = lie
        answer = ask(server, f"acme/public@{'main' if text == 'longer' else hub.repositories['acme/public'].refs['main']}")
        assert answer.status_code == 424 and text in answer.json()["error"], answer.text
        hub.store.address = address
    assert server.token_ids(PROMPT, max_new_tokens=3)


def test_a_hub_that_is_busy_is_waited_for(hub, serve):
    server = serve(hub)
    hub.planned = [Answer(429, {"Retry-After": "1"}), Answer(503), Answer(500)]
    begin = time.monotonic()
    assert ids(ask(server, "acme/public")) == local(server, "tenant-1")
    assert time.monotonic() - begin > 1
    # Nobody waits an hour.
    hub.planned = [Answer(429, {"Retry-After": "3600"})]
    answer = ask(server, "acme/private", api_token=TOKEN)
    assert answer.status_code == 503 and "429" in answer.json()["error"]
    assert "retry-after" in answer.headers


def test_refusals_tell_why(hub, serve, tmp_path):
    written_by("torch", tmp_path / "pickled")
    hub.add("acme/pickled", tmp_path / "pickled")
    hub.add("acme/gated", tmp_path / "pickled")
    hub.repositories["acme/gated"].gated = True
    server = serve(hub)
    for name, text in (("acme/nothing", "not found at the hub"), ("acme/pickled", "are never read"),
                       ("acme/gated", "must ask for it")):
        answer = ask(server, name)
        assert answer.status_code == 424 and text in answer.json()["error"], answer.text
        assert f"'{name}'" in answer.json()["error"]
    asked = len(hub.seen)
    for name in ("nothing", "../../etc", "acme/..", "acme/x/y", "acme/x@../../main", "acme/x@", "-a/b", "a--b/c", "/etc",
                 "http://127.0.0.1/x", "acme/x?y", "acme/x#y", "acme/%2e%2e", "acme/.hidden"):
        answer = ask(server, name)
        assert answer.status_code == 424 and "expected org/name" in answer.json()["error"], answer.text
    assert len(hub.seen) == asked
    assert not any(".bin" in seen.path for seen in hub.seen)


def test_answers_that_make_no_sense_harm_nobody(hub, serve):
    server = serve(hub)
    sane = {"X-Repo-Commit": "a" * 40, "ETag": '"abc"', "Content-Length": "10"}
    for wrong in ({"X-Repo-Commit": "../../evil"}, {"X-Repo-Commit": ""}, {"ETag": '"../evil"'}, {"ETag": ""},
                  {"Content-Length": str(1 << 40)}):
        hub.planned = [Answer(200, sane | wrong)]
        answer = ask(server, f"acme/odd@{abs(hash(str(wrong)))}")
        assert answer.status_code in (424, 503), answer.text
    hub.planned = [Answer(302, sane | {"Location": "file:///etc/passwd", "X-Linked-Size": "10"})] * 2
    assert ask(server, "acme/odd").status_code in (424, 503)
    assert server.process.poll() is None


def test_only_what_the_patterns_allow_is_fetched(hub, serve):
    server = serve(hub, "--hub-adapters", "other/*", "--hub-adapters", "acme/pub*")
    assert ids(ask(server, "acme/public"))
    asked = len(hub.seen)
    answer = ask(server, "acme/private", api_token=TOKEN)
    assert answer.status_code == 424 and "none of those" in answer.json()["error"]
    assert len(hub.seen) == asked


def test_downloads_stay_below_the_quota(hub, serve, tiny_folder, tmp_path):
    size = (tiny_folder / "adapters" / "tenant-1" / WEIGHTS).stat().st_size
    server = serve(hub, "--adapter-download-quota", str(size + 2000))
    assert ids(ask(server, "acme/public"))
    answer = ask(server, "acme/private", api_token=TOKEN)  # the first was used just now
    assert answer.status_code == 503 and "downloads may take" in answer.json()["error"], answer.text
    small = serve(hub, "--adapter-host-memory", str(size - 1), env={"HUGGINGFACE_HUB_CACHE": str(tmp_path / "other")})
    answer = ask(small, "acme/public")
    assert answer.status_code == 424 and "expected at most" in answer.json()["error"], answer.text
    assert not (tmp_path / "other").exists()


def test_two_servers_fetch_once(hub, serve):
    servers = [serve(hub) for _ in range(2)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda server: ids(ask(server, "acme/public")), servers))
    assert answers[0] == answers[1] == local(servers[0], "tenant-1")
    assert hub.store.count("GET") == 1


def test_what_was_fetched_is_served_while_the_hub_is_gone(hub, serve):
    server = serve(hub)
    assert ids(ask(server, "acme/private", api_token=TOKEN))
    gone = serve(f"http://127.0.0.1:{free_port()}")
    # Readers are known by token and hub: that of another address is another hub.
    assert ask(gone, "acme/private", api_token=TOKEN).status_code == 503
    port = hub.server.server_address[1]
    hub.close()
    again = serve(f"http://127.0.0.1:{port}")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        may = pool.submit(ask, again, "acme/private", api_token=TOKEN)
        may_not = pool.submit(ask, again, "acme/private")
        assert ids(may.result()) == local(again, "tenant-2")
        assert may_not.result().status_code == 503
    assert "taken from the cache" in again.logged()


def test_a_slow_hub_delays_no_other_adapter_and_no_end(hub, serve):
    server = serve(hub, env={"HF_HUB_DOWNLOAD_TIMEOUT": "600"})
    hub.store.hanging.set()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        body = b'{"inputs":"x","parameters":{"adapter_id":"acme/public"}}'
        client.sendall(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                       % len(body) + body)
        eventually(lambda: hub.store.count("GET") == 1)
        assert local(server, "tenant-3")
    eventually(lambda: server.metric("shoal_queued") == 0)
    begin = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - begin < 15
    hub.store.hanging.clear()


def test_a_download_that_stalls_is_tried_again(hub, serve):
    server = serve(hub, env={"HF_HUB_DOWNLOAD_TIMEOUT": "1"})
    hub.store.hanging.set()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, server, "acme/public")
        eventually(lambda: hub.store.count("GET") >= 2)
        hub.store.hanging.clear()
        assert ids(answer.result()) == local(server, "tenant-1")


def test_certificates_are_checked(tiny_folder, serve, tmp_path):
    key = tmp_path / "hub.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", tmp_path / "ca.pem",
                    "-subj", "/CN=hub", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"], check=True,
                   capture_output=True)
    key.write_text(key.read_text() + (tmp_path / "ca.pem").read_text())
    hub = FakeHub(key)
    hub.add("acme/public", tiny_folder / "adapters" / "tenant-1")
    answer = ask(serve(hub), "acme/public")
    assert answer.status_code == 503 and "certificate" in answer.json()["error"], answer.text
    trusting = serve(hub, env={"CURL_CA_BUNDLE": str(tmp_path / "ca.pem")})
    assert ids(ask(trusting, "acme/public")) == local(trusting, "tenant-1")
    assert hub.faults + hub.store.faults == []
    hub.close()


def test_preloaded_adapters_may_come_from_the_hub(hub, serve):
    server = serve(hub, "--preloaded-adapter-ids", "acme/public")
    assert hub.store.count("GET") == 1
    asked = len(hub.seen)
    assert ids(ask(server, "acme/public")) == local(server, "tenant-1")
    assert len(hub.seen) == asked
