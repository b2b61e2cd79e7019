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
    assert "--max-new-tokens: 0 is not a number from 1 up" in ended.stderr, ended.stderr


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
            answer = requests.post(running.url + "/generate", json=body, timeout=10)
            assert answer.status_code == 424 and "regular file" in answer.text, answer.text
        running.generate("x", adapter_id="sql-table", max_new_tokens=1)
    finally:
        assert running.stop() == 0
