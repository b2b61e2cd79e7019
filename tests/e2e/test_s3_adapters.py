"""Adapters from buckets: signed requests, and nothing but what the flags allow."""

import pytest
from conftest import Server
from fake_s3 import FakeS3
from fake_web import Answer
from test_hub_adapters import WEIGHTS, ask, ids, local

FOLDERS = ["lora/one", "deep/er/two words+and~signs", "ünïcode/ä$&'()*,;=:@!"]


@pytest.fixture
def buckets(tiny_folder):
    running = FakeS3(session_token="a/session+token==")
    for number, folder in enumerate(FOLDERS):
        running.add(f"tenants.bucket/{folder}", tiny_folder / "adapters" / f"tenant-{number}")
    running.add("secrets/of-others", tiny_folder / "adapters" / "tenant-5")
    yield running
    running.close()
    assert running.faults == []


@pytest.fixture
def serve(tiny_folder, tmp_path):
    started = []

    def start(buckets: FakeS3, *flags: str, env: dict | None = None) -> Server:
        given = {"HF_HUB_CACHE": str(tmp_path / "cache"), **buckets.environment(), **(env or {})}
        started.append(Server(tiny_folder, "--adapter-source", "s3", *flags, env=given))
        return started[-1]

    yield start
    for running in started:
        running.stop()


def test_an_adapter_of_a_bucket_is_that_of_the_folder(buckets, serve):
    server = serve(buckets, "--s3-adapters", "tenants.bucket/*")
    for number, folder in enumerate(FOLDERS):
        for name in (f"s3://tenants.bucket/{folder}", f"tenants.bucket/{folder}/"):
            assert ids(ask(server, name)) == local(server, f"tenant-{number}"), name
    assert buckets.count("GET") == 2 * len(FOLDERS)
    again = serve(buckets, "--s3-adapters", "tenants.bucket/*")
    assert ids(ask(again, f"tenants.bucket/{FOLDERS[0]}")) == local(server, "tenant-0")
    assert buckets.count("GET") == 2 * len(FOLDERS), "it lies in the cache"
    assert buckets.credentials.secret_key not in server.logged()


def test_a_bucket_and_a_folder_may_be_given(buckets, serve):
    server = serve(buckets, env={"PREDIBASE_MODEL_BUCKET": "tenants.bucket", "PREDIBASE_MODEL_FOLDER": "lora"})
    assert ids(ask(server, "one")) == local(server, "tenant-0")
    assert ids(ask(server, "s3://tenants.bucket/lora/one")) == local(server, "tenant-0")
    asked = len(buckets.seen)
    for name in ("s3://tenants.bucket/deep/er/two words+and~signs", "s3://secrets/of-others", "s3://tenants.bucket/lora"):
        answer = ask(server, name)
        assert answer.status_code == 424 and "none of those" in answer.json()["error"], answer.text
    for name in ("../deep", "a/../../b", ".", "a//b", "s3://tenants.bucket", "s3:///x", "s3://UPPER/x"):
        answer = ask(server, name)
        assert answer.status_code == 424 and "names no folder of a bucket" in answer.json()["error"], answer.text
    assert len(buckets.seen) == asked


def test_without_a_bucket_or_patterns_the_server_does_not_start(buckets, serve):
    with pytest.raises(RuntimeError, match="ended with 1:(.|\n)*need a bucket, or patterns"):
        serve(buckets)


def test_wrong_credentials_and_what_is_not_there(buckets, serve):
    patterns = ("--s3-adapters", "*")
    wrong = serve(buckets, *patterns, env={"AWS_SECRET_ACCESS_KEY": "guessed"})
    answer = ask(wrong, "tenants.bucket/lora/one")
    assert answer.status_code == 424 and "refuses this server's credentials" in answer.json()["error"], answer.text
    server = serve(buckets, *patterns)
    answer = ask(server, "tenants.bucket/lora/nothing")
    assert answer.status_code == 424 and answer.json()["error_code"] == "adapter_not_found", answer.text
    buckets.planned = [Answer(301, {"x-amz-bucket-region": "sa-east-1"})]
    answer = ask(server, "tenants.bucket/lora/one")
    assert answer.status_code == 424 and "region sa-east-1" in answer.json()["error"], answer.text


def test_cut_and_busy_buckets(buckets, serve, tiny_folder):
    server = serve(buckets, "--s3-adapters", "*")
    size = (tiny_folder / "adapters" / "tenant-0" / WEIGHTS).stat().st_size
    buckets.planned = [Answer(503, {}, b"<Error><Code>SlowDown</Code></Error>")]
    buckets.cuts = [10**6, size // 2]  # the config whole, half of the weights
    assert ids(ask(server, "tenants.bucket/lora/one")) == local(server, "tenant-0")
    ranges = [seen.headers.get("range") for seen in buckets.seen if seen.method == "GET" and WEIGHTS in seen.path]
    assert ranges == [None, f"bytes={size // 2}-"]


def test_a_file_that_is_replaced_meanwhile_is_not_mixed(buckets, serve, tiny_folder):
    server = serve(buckets, "--s3-adapters", "*")
    path = f"tenants.bucket/lora/one/{WEIGHTS}"
    size = len(buckets.objects[path])
    answer_as_before = buckets.answer

    def answer(seen):
        found = answer_as_before(seen)
        if seen.method == "GET" and WEIGHTS in seen.path:
            buckets.objects[path] = (tiny_folder / "adapters" / "tenant-4" / WEIGHTS).read_bytes()
        return found

    buckets.answer = answer
    buckets.cuts = [10**6, size // 2]
    refused = ask(server, "tenants.bucket/lora/one")
    assert refused.status_code == 503 and "replaced while" in refused.json()["error"], refused.text
