"""Wrong flags and wrong folders: one line that names what was found, and the right exit status."""

import json
import os
import shutil
import subprocess

import pytest
import requests
from conftest import BINARY, ROOT, Server

SOLAR = ROOT / "models" / "solar"


def run(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("key, value, named", [("sliding_window", -1, "sliding_window"), ("head_dim", 31, "even")])
def test_a_config_that_cannot_work_is_refused_at_start(tmp_path, key, value, named):
    model = tmp_path / "model"
    shutil.copytree(SOLAR, model)
    config = json.loads((model / "config.json").read_text()) | {key: value}
    (model / "config.json").write_text(json.dumps(config))
    ended = run("generate", "--model-id", model, "--token-ids", "1,2", "--max-new-tokens", 1)
    assert ended.returncode == 1 and named in ended.stderr and "\n" not in ended.stderr.strip(), ended


def test_numbers_out_of_range_are_named_with_what_is_expected():
    ended = run("generate", "--model-id", SOLAR, "--token-ids", "1", "--max-new-tokens", 0)
    assert ended.returncode == 2, ended
    assert "--max-new-tokens: '0' is not a whole number from 1 to 1000000000" in ended.stderr, ended.stderr


GENERATE = ["generate", "--model-id", SOLAR]
SERVE = ["serve", "--model-id", SOLAR, "--port", 0]


@pytest.mark.parametrize("arguments, named", [
    (["generate", "--model-id", "no/such", "--prompt", "x"], "--model-id is no/such, which is no folder"),
    (["generate", "--model-id", "no/such", "--token-ids", "1"], "--model-id is no/such, which is no folder"),
    (["generate", "--model-id", SOLAR / "config.json", "--prompt", "x"], "which is no folder"),
    (["logits", "--model-id", "no/such", "--token-ids", "1", "--output", "x"], "--model-id is no/such"),
    (["bench", "--config", "no/such", "--load-format", "dummy"], "--config is no/such, which is no folder"),
    (["inspect", "no/such"], "the folder is no/such, which is no folder"),
    (["serve", "--model-id", "no/such"], "--model-id is no/such, which is no folder"),
    ([*GENERATE, "--prompt", ""], "--prompt: '' is not a text of at least one character"),
    ([*GENERATE, "--token-ids", ""], "--token-ids is '', expected numbers"),
    ([*GENERATE, "--input", ""], "--input: File does not exist"),
    ([*GENERATE, "--prompt", "x", "--max-new-tokens", 999999999], "expected at most 36864: 16 times the model's 2304"),
    ([*GENERATE, "--prompt", "x", "--max-new-tokens", 10**20], "--max-new-tokens: '100000000000000000000' is not"),
    ([*GENERATE, "--prompt", "x", "--max-new-tokens", 2**63], "--max-new-tokens: '9223372036854775808' is not"),
    ([*GENERATE, "--prompt", "x", "--max-new-tokens", 1.5], "--max-new-tokens: '1.5' is not a whole number"),
    ([*GENERATE, "--prompt", "x", "--seed", 2**64], "--seed: '18446744073709551616' is not"),
    ([*GENERATE, "--prompt", "x", "--seed", -1], "--seed: '-1' is not"),
    ([*GENERATE, "--prompt", "x", "--temperature", "nan"], "--temperature: 'nan' is not"),
    ([*GENERATE, "--prompt", "x", "--temperature", "1e99"], "--temperature: '1e99' is not"),
    (["generate", "--model-id", ROOT / "models/santacoder", "--prompt", "x", "--max-new-tokens", 99999],
     "the model's table of positions ends there"),
    (["bench", "--model-id", SOLAR, "--context", 10**9], "--context asks for 1000000001 positions"),
    (["bench", "--model-id", SOLAR, "--batch", 0], "--batch is 0, expected numbers from 1 to 4096"),
    (["bench", "--model-id", SOLAR, "--json", "/no/such/file"], "--json is /no/such/file, which cannot be written"),
    ([*SERVE, "--max-total-tokens", 1], "--max-total-tokens: '1' is not a whole number from 2"),
    ([*SERVE, "--max-total-tokens", 10**7], "--max-total-tokens asks for 10000000 positions, expected at most 36864"),
    ([*SERVE, "--max-total-tokens", 10**9], "--max-total-tokens asks for 1000000000 positions"),
    ([*SERVE, "--max-concurrent-requests", 10**20], "--max-concurrent-requests: '100000000000000000000' is not"),
    ([*SERVE, "--tokenizer-config-path", "/no/such"], "--tokenizer-config-path: File does not exist: /no/such"),
    ([*SERVE, "--hostname", ""], "--hostname: '' is not a text of at least one character"),
    ([*SERVE, "--api-key", ""], "--api-key: '' is not a text of at least one character"),
    ([*SERVE, "--max-queue", -1], "--max-queue: '-1' is not a whole number from 0"),
    ([*SERVE, "--max-requests-per-tenant", 0], "--max-requests-per-tenant: '0' is not a whole number from 1"),
    ([*SERVE, "--request-timeout", 0], "--request-timeout"),
    ([*SERVE, "--tenant-api-key", "no-mark"], "--tenant-api-key: expected TENANT=KEY"),
    ([*SERVE, "--tenant-api-key", "a=k", "--tenant-api-key", "b=k"], "the key of tenant 'b' is given twice"),
    ([*SERVE, "--tenant-api-key", "a=k", "--api-key", "k"], "the key of tenant 'a' is given twice"),
])
def test_what_cannot_be_done_is_bad_usage_named_in_one_line(arguments, named):
    ended = run(*arguments)
    assert ended.returncode == 2, ended
    assert named in ended.stderr and len(ended.stderr.splitlines()) == 1 and not ended.stdout, ended


def test_a_port_in_use_is_told_without_where_in_boost_it_was_found(server):
    ended = run("serve", "--model-id", SOLAR, "--hostname", "127.0.0.1", "--port", server.port)
    assert ended.returncode == 1, ended
    last_line = ended.stderr.splitlines()[-1]
    assert last_line == f"shoal: cannot listen on 127.0.0.1:{server.port}: Address already in use"


def test_positions_beyond_the_models_are_served_with_a_warning():
    ended = run(*GENERATE, "--prompt", "x", "--max-new-tokens", 2400, "--log-level", "warn")
    assert ended.returncode == 0, ended
    assert "positions, the model was made for 2304" in ended.stderr, ended.stderr


def test_the_smallest_lengths_are_served(own_server):
    running = own_server("--max-total-tokens", "2", "--max-input-length", "1")
    body = {"model": "", "prompt": [5], "max_tokens": 1}
    assert requests.post(running.url + "/v1/completions", json=body, timeout=60).status_code == 200


def test_texts_are_no_longer_than_the_cache(own_server):
    running = own_server("--kv-cache-memory", "256KiB")
    info = requests.get(running.url + "/info", timeout=60).json()
    assert info["max_total_tokens"] == info["max_batch_total_tokens"] < 2304
    assert info["max_input_length"] == info["max_total_tokens"] - 1
    assert f"the cache holds {info['max_total_tokens']} tokens" in running.logged()
    # As many as fit, for a request that does not say how many.
    assert len(running.token_ids("a", ignore_eos_token=True)) == info["max_total_tokens"] - 1
    for flags in (["--max-total-tokens", info["max_total_tokens"] + 1], ["--max-input-length", info["max_total_tokens"]]):
        refused = run(*SERVE, "--kv-cache-memory", "256KiB", *flags)
        assert refused.returncode == 2 and flags[0] in refused.stderr, refused


def test_generate_finds_adapters_below_the_adapter_folder():
    item = json.loads((SOLAR / "reference/tasks/sql-table.jsonl").read_text().splitlines()[0])
    ended = run("generate", "--model-id", SOLAR, "--adapter-dir", SOLAR / "adapters", "--adapter-id", "sql-table",
                "--prompt", item["inputs"])
    assert ended.returncode == 0 and item["answer"] in ended.stdout, ended


def test_weights_that_are_a_pipe_are_refused_and_hold_up_nothing(tmp_path):
    (tmp_path / "model").symlink_to(SOLAR)
    shutil.copytree(SOLAR / "adapters", tmp_path / "adapters")
    for name in ("pipe-1", "pipe-2", "pipe-3"):
        folder = tmp_path / "adapters" / name
        folder.mkdir()
        shutil.copy(SOLAR / "adapters/sql-table/adapter_config.json", folder)
        os.mkfifo(folder / "adapter_model.safetensors")
    running = Server(tmp_path)
    try:
        for name in ("pipe-1", "pipe-2", "pipe-3"):
            body = {"inputs": "x", "parameters": {"adapter_id": name, "max_new_tokens": 1}}
            answer = requests.post(running.url + "/generate", json=body, timeout=60)
            assert answer.status_code == 424 and "regular file" in answer.text, answer.text
        running.generate("x", adapter_id="sql-table", max_new_tokens=1)
    finally:
        assert running.stop() == 0


@pytest.mark.parametrize("folder, known_as", [("falcon", "Falcon"), ("solar", "Solar"), ("cohere", "Cohere Command"),
                                              ("santacoder", "StarCoder (GPTBigCode)")])
def test_inspect_names_the_family_as_people_know_it(folder, known_as):
    ended = run("inspect", ROOT / "models" / folder)
    assert ended.returncode == 0 and f"  family          {known_as}\n" in ended.stdout, ended


def test_the_log_names_the_family_as_people_know_it(server):
    assert "Llama on cpu/" in server.logged()


def test_bench_says_what_it_is_doing_beside_its_figures():
    ended = run("bench", "--config", SOLAR, "--load-format", "dummy", "--batch", 1, "--context", 16, "--prompt-len", 16,
                "--new-tokens", 1, "--repeat", 1)
    assert ended.returncode == 0, ended
    doing = ended.stderr.splitlines()
    assert [line.split()[0] for line in doing] == ["probing", "filling", "timing", "timing"], ended.stderr
    assert "probing" not in ended.stdout and "decode batch" in ended.stdout


def test_json_log_lines_are_json_whatever_a_client_wrote(own_server):
    running = own_server("--json-output", "--log-level", "debug")
    requests.get(running.url + '/a"b\\c', timeout=60)
    requests.post(running.url + "/generate", timeout=60,
                  json={"inputs": "x", "parameters": {"adapter_id": 'no"such\\'}})
    messages = [json.loads(line)["message"] for line in running.logged().splitlines()]
    assert any('no"such\\' in message for message in messages), messages
