"""The prefix cache on trained models: many conversations behind shared beginnings, in a cache that is far too small."""

import concurrent.futures
import json

import pytest
from conftest import Server, trained_folder

IN_FLIGHT = 16
NEW_TOKENS = 80
# Solar's window of 128 tokens lets hits leave out their beginning; Falcon's queries see everything.
FAMILIES = ["solar", "falcon"]


def cache_bytes(folder) -> int:
    """Forty blocks of 16 tokens."""
    config = json.loads((folder / "config.json").read_text())
    layers = config["num_hidden_layers"]
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim", config["hidden_size"] // heads)
    kv_heads = 1 if config.get("multi_query") else config["num_key_value_heads"]
    return 40 * 16 * 2 * layers * kv_heads * head_dim * 4


@pytest.fixture(scope="module", params=FAMILIES)
def served(request, tmp_path_factory):
    return trained_folder(request.param, tmp_path_factory)


def jobs_of(folder) -> list[tuple[str, dict]]:
    """Two beginnings of about 100 tokens and twenty ends, each under the base model and every adapter."""
    prompts = json.loads((folder / "reference" / "prompts.json").read_text())
    runs = sorted(prompts)
    beginnings = [" ".join(prompts[run][:4]) for run in runs[1:3]]
    ends = [prompt for prompt in prompts["base"] + prompts[runs[1]] if len(prompt) < 200]
    jobs = []
    for run in runs:
        for i in range(20):
            adapter = {} if run == "base" else {"adapter_id": run}
            sampled = {"do_sample": True, "seed": i, "repetition_penalty": 1.2} if i % 3 == 2 else {}
            jobs.append((f"{beginnings[i % 2]} {ends[i]}",
                         {"max_new_tokens": NEW_TOKENS, "ignore_eos_token": True, **adapter, **sampled}))
    return jobs


def test_answers_out_of_a_small_cache_are_those_of_quiet_runs(served):
    folder, model = served
    jobs = jobs_of(model)
    assert len(jobs) == 80
    quiet = Server(folder, "--dtype", "float32")
    solo = [quiet.generate(prompt, **parameters)["details"] for prompt, parameters in jobs]
    assert quiet.metric("shoal_prefix_lookups") == 0
    assert quiet.stop() == 0
    assert "cached_tokens" not in solo[0]

    server = Server(folder, "--dtype", "float32", "--prefix-caching", "--kv-cache-memory", str(cache_bytes(model)),
                    "--max-total-tokens", "600", "--max-batch-prefill-tokens", "128",
                    env={"SHOAL_BLOCK_ORDER": "shuffled"})
    assert server.metric("shoal_total_blocks") == 40
    cached_tokens = 0
    for _ in range(3):
        with concurrent.futures.ThreadPoolExecutor(IN_FLIGHT) as pool:
            answers = list(pool.map(lambda job: server.generate(job[0], **job[1])["details"], jobs))
        for answer, expected in zip(answers, solo):
            cached_tokens += answer.pop("cached_tokens")
            assert answer == expected, "tokens and scores, bit for bit"
    server.wait_idle()
    counts = {name: server.metric(f"shoal_{name}")
              for name in ("prefix_lookups", "prefix_hits", "prefix_hit_tokens", "prefix_evicted_blocks", "preemptions",
                           "prompt_tokens", "prefix_cached_blocks")}
    print(f"{model.name}: {counts}, {cached_tokens:.0f} prompt tokens were cached")
    assert server.stop() == 0
    assert counts["prefix_hits"] > 50
    assert counts["prefix_evicted_blocks"] > 50
    assert counts["preemptions"] > 50
    assert 0 < cached_tokens <= counts["prefix_hit_tokens"]
    assert counts["prefix_cached_blocks"] > 0
