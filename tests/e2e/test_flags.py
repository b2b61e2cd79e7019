"""Flags and variables: LoRAX's are all known, docs/flags.md says what each does, and those that could not be kept say why."""

import re
import subprocess

import pytest
import requests
from conftest import BINARY, ROOT, Server

SOLAR = ROOT / "models" / "solar"
SERVE = ["serve", "--model-id", SOLAR, "--port", 0]

# Of LoRAX's launcher; those of sources of models and adapters are elsewhere.
LORAX = """--model-id --tokenizer-config-path --trust-remote-code --dtype --weights-cache-override --download-only
--disable-custom-kernels --embedding-dim --backend --sharded --num-shard --master-addr --master-port --shard-uds-path --quantize
--cuda-memory-fraction --memory-wiggle-room --max-concurrent-requests --max-best-of --max-stop-sequences --max-input-length
--max-total-tokens --max-batch-prefill-tokens --max-batch-total-tokens --waiting-served-ratio --max-waiting-tokens --eager-prefill
--validation-workers --chunked-prefill --prefix-caching --adapter-id --adapter-memory-fraction --max-active-adapters
--adapter-cycle-time-s --preloaded-adapter-ids --predibase-api-token --merge-adapter-weights --disable-sgmv --speculative-tokens
--speculation-max-batch-size --compile --eager --compile-max-batch-size --compile-batch-size --compile-max-rank
--cors-allow-origin --cors-allow-method --cors-allow-header --cors-expose-header --cors-allow-credentials --json-output
--otlp-endpoint --env --hostname --port --ngrok --ngrok-authtoken --ngrok-edge --watermark-gamma --watermark-delta
--revision --source""".split()


def run(*arguments, env=None) -> subprocess.CompletedProcess:
    return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False, env=env)


def flags_of_help() -> dict[str, str]:
    """Flag to variable, "" for none."""
    text = run("serve", "--help").stdout
    found = {}
    for entry in re.split(r"\n(?=  -)", text):
        names = re.match(r"\s*(?:-\w,)?(--[\w-]+)", entry)
        if names is None or names.group(1) == "--help":
            continue
        variable = re.search(r"\(Env:(\w+)\)", entry)
        found[names.group(1)] = variable.group(1) if variable else ""
    return found


def flags_of_docs() -> dict[str, str]:
    rows = re.findall(r"^\| `(?:-\w, )?(--[\w-]+)` \| (?:`(\w+)`)? *\|", (ROOT / "docs/flags.md").read_text(), re.MULTILINE)
    assert len(rows) == len({name for name, _ in rows}), "a flag stands there twice"
    return dict(rows)


def test_the_docs_list_the_flags_that_there_are():
    assert flags_of_docs() == flags_of_help()


def test_flags_of_lorax_are_known():
    assert set(LORAX) - set(flags_of_help()) == set()


@pytest.mark.parametrize("flags, named", [
    (["--quantize", "bitsandbytes-nf4"], "--quantize bitsandbytes-nf4 is not served: "),
    (["--quantize", "eetq"], "--quantize eetq is not served: "),
    (["--quantize", "hqq-4bit"], "--quantize hqq-4bit is not served: "),
    (["--quantize", "exl2"], "--quantize exl2 is not served: "),
    (["--trust-remote-code"], "--trust-remote-code true is not served: no code of a checkpoint is run"),
    (["--ngrok"], "--ngrok true is not served: no tunnel"),
    (["--num-shard", 2], "--num-shard 2 is not served: one device"),
    (["--sharded", "true"], "--sharded true is not served"),
    (["--adapter-id", "x"], "--adapter-id x is not served"),
    (["--prefix-caching", "maybe"], "--prefix-caching: 'maybe' is not true or false"),
    (["--cors-allow-credentials"], "--cors-allow-credentials needs --cors-allow-origin"),
    (["--max-header-bytes", "1GiB"], "--max-header-bytes is 1GiB, expected from 1024 to 1048576 bytes"),
    (["--max-body-bytes", "1"], "--max-body-bytes is 1, expected from 1024"),
    (["--max-connections", 0], "--max-connections"),
    (["--idle-timeout", 0], "--idle-timeout"),
])
def test_what_cannot_be_kept_is_refused_with_the_reason(flags, named):
    ended = run(*SERVE, *flags)
    assert ended.returncode == 2, ended
    assert named in ended.stderr and len(ended.stderr.splitlines()) == 1, ended


@pytest.mark.parametrize("flags, on", [(["--prefix-caching"], True), (["--prefix-caching", "true"], True),
                                       (["--prefix-caching", "false"], False), (["--prefix-caching", "--max-queue", "9"], True)])
def test_a_switch_stands_alone_or_with_its_value(tiny_folder, flags, on):
    running = Server(tiny_folder, *flags)
    try:
        assert ("cached_tokens" in running.generate("x", max_new_tokens=1)["details"]) == on
    finally:
        assert running.stop() == 0


def test_a_refused_token_is_not_repeated():
    ended = run(*SERVE, "--ngrok-authtoken", "s3cr3t")
    assert ended.returncode == 2 and "--ngrok-authtoken is not served" in ended.stderr and "s3cr3t" not in ended.stderr


@pytest.mark.parametrize("variable, value", [("QUANTIZE", "hqq-2bit"), ("TRUST_REMOTE_CODE", "1"), ("ROPE_SCALING", "linear")])
def test_variables_are_refused_like_flags(variable, value):
    ended = run(*SERVE, env={variable: value})
    assert ended.returncode == 2 and "is not served" in ended.stderr, ended


def test_a_broken_file_of_keys_is_named_before_the_model_is_loaded(tmp_path):
    path = tmp_path / "keys.json"
    path.write_text('{"keys":[{"key":"s3cr3t"}]}')
    ended = run(*SERVE, "--api-key-file", path)
    assert ended.returncode == 1 and f"{path}: key 1 `tenant` must be" in ended.stderr and "s3cr3t" not in ended.stderr, ended


def test_a_deployment_of_lorax_starts_as_it_is(tiny_folder, tmp_path):
    log = tmp_path / "access.log"
    running = Server(tiny_folder, "--sharded", "false", "--num-shard", "1", "--eager-prefill", "true", "--chunked-prefill", "true",
                     "--prefix-caching", "true", "--compile", "--waiting-served-ratio", "1.2", "--backend", "fa2",
                     "--source", "hub", "--validation-workers", "3", "--cors-allow-origin", "https://a.example",
                     "--cors-allow-credentials", "true", "--access-log", str(log),
                     env={"MAX_WAITING_TOKENS": "20", "NGROK": "false", "CORS_EXPOSE_HEADER": "x-request-id,x-total-time"})
    try:
        text = running.logged()
        for flag in ("--eager-prefill", "--chunked-prefill", "--compile", "--waiting-served-ratio", "--backend", "--max-waiting-tokens"):
            assert text.count(f"{flag} does nothing here: ") == 1, flag
        for flag in ("--sharded", "--num-shard", "--source", "--ngrok", "--prefix-caching"):
            assert f"{flag} does nothing" not in text
        assert requests.get(running.url + "/info", timeout=60).json()["validation_workers"] == 3
        assert "cached_tokens" in running.generate("x", max_new_tokens=1)["details"], "--prefix-caching true is off"
        answer = requests.post(running.url + "/generate", timeout=60, headers={"origin": "https://a.example", "x-request-id": "r-1"},
                               json={"inputs": "secret words", "parameters": {"max_new_tokens": 2}})
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://a.example"
        assert answer.headers["access-control-allow-credentials"] == "true"
        assert answer.headers["access-control-expose-headers"] == "x-request-id, x-total-time"
        assert answer.headers["x-request-id"] == "r-1"
        other = requests.get(running.url + "/info", headers={"origin": "https://b.example"}, timeout=60)
        assert "access-control-allow-origin" not in other.headers
    finally:
        assert running.stop() == 0
    lines = log.read_text().splitlines()
    assert any('"request_id":"r-1"' in line and '"generated_tokens":2' in line for line in lines), lines
    assert "secret words" not in log.read_text()
