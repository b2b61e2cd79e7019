"""`merged_adapters` at request time: through the client that users have, and against weights merged before."""

import json
import shutil
from collections.abc import Callable

import lorax
import numpy as np
import pytest
import requests
from conftest import ADAPTERS, Server
from lorax.errors import GenerationError, ValidationError
from lorax.types import MergedAdapters
from safetensors.numpy import load_file, save_file

PROMPT = "The quick brown fox"
NUM_TOKENS = 40


def merge_of(ids: list[str], weights: list[float], strategy: str | None = None, density: float = 0.0,
             sign: str | None = None) -> dict:
    return {"ids": ids, "weights": weights, "merge_strategy": strategy, "density": density,
            "majority_sign_method": sign}


def ids_of(answer) -> list[int]:
    return [token.id for token in answer.details.tokens]


@pytest.fixture
def client(server):
    return lorax.Client(server.url)


# --- the client ---


@pytest.mark.parametrize("strategy", [None, "linear", "ties", "dare_linear", "dare_ties"])
@pytest.mark.parametrize("sign", [None, "total", "frequency"])
def test_lorax_client_merges(client, strategy, sign):
    merged = MergedAdapters(**merge_of(ADAPTERS[:3], [0.5, 0.75, 1.25], strategy, 0.5, sign))
    whole = client.generate(PROMPT, max_new_tokens=NUM_TOKENS, merged_adapters=merged)
    again = client.generate(PROMPT, max_new_tokens=NUM_TOKENS, merged_adapters=merged)
    assert [(token.id, token.logprob) for token in whole.details.tokens] == \
        [(token.id, token.logprob) for token in again.details.tokens]
    events = list(client.generate_stream(PROMPT, max_new_tokens=NUM_TOKENS, merged_adapters=merged,
                                         adapter_source="local"))
    assert [event.token.id for event in events] == ids_of(whole)
    singles = [client.generate(PROMPT, max_new_tokens=NUM_TOKENS, adapter_id=adapter)
               for adapter in [None, *ADAPTERS[:3]]]
    assert all(ids_of(single) != ids_of(whole) for single in singles)


def test_strategies_differ_from_one_another(client):
    def answer(*merge):
        return tuple(ids_of(client.generate(PROMPT, max_new_tokens=NUM_TOKENS,
                                            merged_adapters=MergedAdapters(**merge_of(*merge)))))

    pair = ADAPTERS[:2]
    answers = {
        answer(pair, [1.0, 1.0]),
        answer(pair, [1.0, 0.5]),
        answer(pair, [1.0, 1.0], "ties", 0.3),
        answer(pair, [1.0, 1.0], "ties", 0.8),
        answer(pair, [1.0, 1.0], "dare_linear", 0.3),
        answer(pair, [1.0, 1.0], "dare_ties", 0.3),
    }
    assert len(answers) == 6
    assert answer(pair, [1.0, 1.0], "dare_linear", 1.0) == answer(pair, [1.0, 1.0]), "a density of 1 drops nothing"


def test_one_adapter_at_weight_one_is_that_adapter(server):
    for adapter in ADAPTERS[:4]:
        alone = server.token_ids(PROMPT, max_new_tokens=NUM_TOKENS, adapter_id=adapter)
        assert server.token_ids(PROMPT, max_new_tokens=NUM_TOKENS,
                                merged_adapters={"ids": [adapter], "weights": [1]}) == alone
        # Its ranks twice, at half the weight each: other sums, the same change.
        assert server.token_ids(PROMPT, max_new_tokens=NUM_TOKENS,
                                merged_adapters={"ids": [adapter] * 2, "weights": [0.5, 0.5]}) == alone


def test_headers_name_what_was_merged(server):
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 1, "merged_adapters": {
        "ids": ADAPTERS[:2], "weights": [1, 1]}}}
    for route in ("/generate", "/generate_stream"):
        headers = requests.post(server.url + route, json=body, timeout=60).headers
        assert headers["x-adapter-id"] == "tenant-0,tenant-1"
        assert headers["x-adapter-source"] == "local"


def test_embeddings_of_a_merge(server):
    def embedding(**parameters):
        native = requests.post(server.url + "/embed", json={"inputs": PROMPT, "parameters": parameters}, timeout=60)
        openai = requests.post(server.url + "/v1/embeddings", timeout=60,
                               json={"model": "", "input": PROMPT, "parameters": parameters})
        assert native.status_code == 200, native.text
        assert native.json()["embeddings"] == openai.json()["data"][0]["embedding"]
        return np.array(native.json()["embeddings"])

    alone = embedding(adapter_id="tenant-0")
    assert embedding(merged_adapters=merge_of(["tenant-0"] * 2, [0.5, 0.5])) == pytest.approx(alone, abs=1e-5)
    assert np.abs(embedding(merged_adapters=merge_of(ADAPTERS[:2], [1.0, 1.0])) - alone).max() > 1e-3


# --- against weights merged before ---


def deltas_of(folder, adapter: str) -> dict[str, np.ndarray]:
    """What PEFT adds to each weight: alpha / rank x B A, in double."""
    config = json.loads((folder / "adapters" / adapter / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapters" / adapter / "adapter_model.safetensors")
    deltas = {}
    for name, a in tensors.items():
        if ".lora_A." not in name:
            continue
        module = name.removeprefix("base_model.model.").replace(".lora_A.weight", ".weight")
        b = tensors[name.replace(".lora_A.", ".lora_B.")]
        deltas[module] = config["lora_alpha"] / config["r"] * b.astype(np.float64) @ a.astype(np.float64)
    return deltas


def linear(deltas: list[np.ndarray], weights: list[float]) -> np.ndarray:
    return sum(weight * delta for weight, delta in zip(weights, deltas))


def ties(density: float, sign: str) -> Callable[[list[np.ndarray], list[float]], np.ndarray]:
    """TIES-Merging as its paper has it, on whole deltas."""

    def merge(deltas: list[np.ndarray], weights: list[float]) -> np.ndarray:
        kept = []
        for delta in deltas:
            cut = np.sort(np.abs(delta), axis=None)[-int(density * delta.size)]
            kept.append(np.where(np.abs(delta) >= cut, delta, 0.0))
        votes = sum(kept) if sign == "total" else sum(np.sign(delta) for delta in kept)
        elected = np.where(votes >= 0, 1, -1)
        agreeing = [np.sign(delta) == elected for delta in kept]
        total = sum(weight * delta * agrees for weight, delta, agrees in zip(weights, kept, agreeing))
        return total / np.maximum(sum(agrees.astype(int) for agrees in agreeing), 1)

    return merge


@pytest.mark.parametrize(("merged", "by_hand"), [
    (merge_of(ADAPTERS[:3], [0.6, -0.3, 1.1]), linear),
    (merge_of(ADAPTERS[:3], [0.6, 0.9, 1.1], "ties", 0.4, "total"), ties(0.4, "total")),
    (merge_of(ADAPTERS[1:4], [1.0, 1.0, 1.0], "ties", 0.7, "frequency"), ties(0.7, "frequency")),
], ids=["linear", "ties by sum", "ties by number"])
def test_a_merge_does_what_its_merged_weights_do(server, tiny_folder, tmp_path, merged, by_hand):
    shutil.copytree(tiny_folder / "model", tmp_path / "model")
    (tmp_path / "adapters").symlink_to(tiny_folder / "adapters")
    weights = load_file(tmp_path / "model" / "model.safetensors")
    members = [deltas_of(tiny_folder, adapter) for adapter in merged["ids"]]
    for module in members[0]:
        delta = by_hand([member[module] for member in members], merged["weights"])
        weights[module] = (weights[module] + delta).astype(np.float32)
    save_file(weights, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    baked = Server(tmp_path, "--dtype", "float32")
    try:
        for inputs in (PROMPT, "A server answers", "12345"):
            at_request = server.generate(inputs, max_new_tokens=NUM_TOKENS, merged_adapters=merged)
            before = baked.generate(inputs, max_new_tokens=NUM_TOKENS)
            tokens, expected = (answer["details"]["tokens"] for answer in (at_request, before))
            assert [token["id"] for token in tokens] == [token["id"] for token in expected]
            assert [token["logprob"] for token in tokens] == \
                pytest.approx([token["logprob"] for token in expected], abs=1e-3)
    finally:
        assert baked.stop() == 0


# --- beside the rest of the server ---


def test_a_replaced_member_serves_the_next_request(tiny_folder, tmp_path):
    (tmp_path / "model").symlink_to(tiny_folder / "model")
    shutil.copytree(tiny_folder / "adapters", tmp_path / "adapters")
    running = Server(tmp_path, "--prefix-caching")
    merged = merge_of(["tenant-0", "tenant-1"], [0.7, 0.7])
    other = running.token_ids(PROMPT, max_new_tokens=20, merged_adapters=merge_of(["tenant-0", "tenant-2"], [0.7, 0.7]))
    before = running.token_ids(PROMPT, max_new_tokens=20, merged_adapters=merged)
    assert before != other
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(tmp_path / "adapters" / "tenant-2" / name, tmp_path / "new")
        (tmp_path / "new").rename(tmp_path / "adapters" / "tenant-1" / name)
    assert running.token_ids(PROMPT, max_new_tokens=20, merged_adapters=merged) == other
    assert running.stop() == 0


def test_merges_share_no_cached_prefix(own_server):
    running = own_server("--prefix-caching")
    long_prompt = PROMPT * 12
    answers = []
    for _ in range(2):
        for weight in (0.25, 0.5, 0.75):
            merged = {"ids": ADAPTERS[:2], "weights": [weight, 1]}
            answers.append(running.token_ids(long_prompt, max_new_tokens=10, merged_adapters=merged))
    assert answers[:3] == answers[3:]
    assert running.metric("shoal_prefix_hit_tokens") > 0, "the second round found its own"
    alone = own_server()
    for weight, answer in zip((0.25, 0.5, 0.75), answers):
        merged = {"ids": ADAPTERS[:2], "weights": [weight, 1]}
        assert alone.token_ids(long_prompt, max_new_tokens=10, merged_adapters=merged) == answer


@pytest.mark.parametrize(("merged", "message"), [
    ({"ids": []}, "`merged_adapters.ids` must name at least one adapter"),
    ({"ids": ["tenant-0"], "weights": []}, "`merged_adapters.weights` must be as many as `ids`, given: 0 and 1"),
    (merge_of(["tenant-0"], [1.0], "ties"), "`merged_adapters.density` must be > 0.0 and <= 1.0 with ties"),
    (merge_of(["tenant-0"], [1.0], "mean"), "must be linear, ties, dare_linear or dare_ties, given: 'mean'"),
    (merge_of(["tenant-0"], [1.0], "ties", 0.5, "loudest"), "must be total or frequency, given: 'loudest'"),
    (merge_of([""], [1.0]), "must not name the base model"),
])
def test_bad_merges_are_told_by_name(server, merged, message):
    body = {"inputs": PROMPT, "parameters": {"merged_adapters": merged}}
    response = requests.post(server.url + "/generate", json=body, timeout=60)
    assert response.status_code == 422
    assert response.json()["error_type"] == "validation"
    assert message in response.json()["error"]
    stream = requests.post(server.url + "/generate_stream", json=body, timeout=60)
    assert json.loads(stream.text.removeprefix("data:")) == response.json()


@pytest.mark.parametrize("adapter", ["", "tenant-0"])
def test_one_adapter_beside_a_merge_is_refused(server, adapter):
    body = {"inputs": PROMPT, "parameters": {"adapter_id": adapter, "merged_adapters": merge_of(["tenant-0"], [1.0])}}
    response = requests.post(server.url + "/generate", json=body, timeout=60)
    assert response.status_code == 422
    assert "`adapter_id` and `merged_adapters` must not both be set" in response.json()["error"]


def test_errors_reach_the_client_as_its_own(client):
    pair = MergedAdapters(**merge_of(["tenant-0", "no-such-adapter"], [1.0, 1.0]))
    with pytest.raises(GenerationError, match="no-such-adapter"):
        client.generate(PROMPT, max_new_tokens=5, merged_adapters=pair)
    with pytest.raises(GenerationError, match="no-such-adapter"):
        list(client.generate_stream(PROMPT, max_new_tokens=5, merged_adapters=pair))
    with pytest.raises(ValidationError, match="density"):
        client.generate(PROMPT, max_new_tokens=5,
                        merged_adapters=MergedAdapters(**merge_of(["tenant-1"], [1.0], "ties", 0.0)))
    assert client.generate(PROMPT, max_new_tokens=5).details.generated_tokens == 5, "the server goes on"
