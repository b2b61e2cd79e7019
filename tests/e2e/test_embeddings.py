"""Embeddings through the official clients: what the model's own head makes of them is what the model says next."""

import concurrent.futures
import json

import lorax
import numpy as np
import openai
import pytest
import requests
from conftest import ADAPTERS
from lorax.errors import ValidationError

TEXTS = ["The quick brown fox", "a", "one two three four five six seven eight nine ten " * 8, "def add(a, b):\n    return"]


def client_of(server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def vectors(server, texts, model="", **more) -> np.ndarray:
    answer = client_of(server).embeddings.create(model=model, input=texts, **more)
    assert [each.index for each in answer.data] == list(range(len(answer.data)))
    return np.array([each.embedding for each in answer.data], np.float32)


def head_of(folder) -> np.ndarray:
    """In float64; NumPy knows no bfloat16, whose bits are the upper half of a float32's."""
    raw = (folder / "model.safetensors").read_bytes()
    begin = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:begin])
    names = ("lm_head.weight", "model.embed_tokens.weight", "transformer.wte.weight",
             "transformer.word_embeddings.weight")
    found = next(header[name] for name in names if name in header)
    assert found["dtype"] == "BF16"
    first, last = found["data_offsets"]
    bits = np.frombuffer(raw[begin + first:begin + last], np.uint16).astype(np.uint32) << 16
    return bits.view(np.float32).reshape(found["shape"]).astype(np.float64)


def test_the_models_head_says_the_next_token(trained):
    server, folder = trained
    found = vectors(server, TEXTS)
    head = head_of(folder)
    assert found.shape == (len(TEXTS), head.shape[1])
    assert np.linalg.norm(found.astype(np.float64), axis=1) == pytest.approx(np.ones(len(TEXTS)), abs=1e-6)
    for text, vector in zip(TEXTS, found, strict=True):
        assert server.token_ids(text, max_new_tokens=1) == [int(np.argmax(head @ vector.astype(np.float64)))]


def test_adapters_change_embeddings(trained):
    server, folder = trained
    base = vectors(server, TEXTS)
    for adapter in sorted(path.name for path in (folder / "adapters").iterdir()):
        adapted = vectors(server, TEXTS, model=adapter)
        assert np.abs(adapted - base).max() > 1e-3, adapter
        native = requests.post(server.url + "/embed", timeout=60, json={
            "inputs": TEXTS[0], "parameters": {"adapter_id": adapter}}).json()["embeddings"]
        assert np.array_equal(np.array(native, np.float32), adapted[0])


def test_all_forms_give_the_same_numbers(server):
    base64 = vectors(server, TEXTS, model=ADAPTERS[0])  # the client's own choice
    assert np.array_equal(vectors(server, TEXTS, model=ADAPTERS[0], encoding_format="float"), base64)
    ids = [[token["id"] for token in requests.post(server.url + "/tokenize", json={"inputs": text}, timeout=60).json()]
           for text in TEXTS]
    assert np.array_equal(vectors(server, ids, model=ADAPTERS[0]), base64)
    assert np.array_equal(vectors(server, ids[0], model=ADAPTERS[0])[0], base64[0])
    usage = client_of(server).embeddings.create(model="", input=TEXTS).usage
    assert usage.prompt_tokens == usage.total_tokens == sum(map(len, ids))
    # LoRAX's route and client know no adapter here.
    plain = lorax.Client(server.url).embed(TEXTS[0]).embeddings
    assert np.array_equal(np.array(plain, np.float32), vectors(server, TEXTS[0])[0])
    lorax_form = requests.post(server.url + "/v1/embeddings", timeout=60, json={
        "model": "anything", "input": TEXTS, "parameters": {"adapter_id": ADAPTERS[0]}}).json()["embeddings"]
    assert np.array_equal(np.array([each["embedding"] for each in lorax_form], np.float32), base64)


@pytest.mark.parametrize("flags", [("--max-batch-prefill-tokens", "7"), ("--prefix-caching",)])
def test_chunks_company_and_cached_prefixes_change_nothing(own_server, server, flags):
    """Texts together with others that decode, in chunks, or found in the prefix cache, are those of a server alone."""
    texts = [text + tail for text in TEXTS for tail in ("", " and", " and more")]
    alone = np.concatenate([vectors(server, [text]) for text in texts])
    running = own_server(*flags)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(running.token_ids, text, max_new_tokens=20) for text in texts]
        found = list(pool.map(lambda text: vectors(running, [text])[0], texts * 2))
        for text, answer in zip(texts, answers, strict=True):
            assert answer.result() == server.token_ids(text, max_new_tokens=20)
    for vector, expected in zip(found, np.concatenate([alone, alone]), strict=True):
        assert np.abs(vector - expected).max() < 1e-5


def test_a_model_that_can_be_no_adapter_is_the_base_model(server):
    """LoRAX ignores the field; here it may name an adapter, and the answer says which model it was."""
    listed = [each.id for each in client_of(server).models.list()]
    assert len(listed) > 1
    for name in ("text-embedding-3-small", "../model", listed[0]):
        answer = client_of(server).embeddings.create(model=name, input="a")
        assert answer.model == listed[0]
        assert (np.array(answer.data[0].embedding, np.float32) == vectors(server, "a")[0]).all()
    for model, parameters in ((listed[1], {}), (listed[1], {"adapter_id": ""}), ("x", {"adapter_id": listed[1]}),
                              (listed[1], {"adapter_source": "local"})):
        answer = client_of(server).embeddings.create(model=model, input="a", extra_body={"parameters": parameters})
        assert answer.model == listed[1]
        assert (np.array(answer.data[0].embedding, np.float32) != vectors(server, "a")[0]).any()
    for source, status in (("local", 404), ("nonsense", 400)):
        refused = requests.post(server.url + "/v1/embeddings", timeout=60, json={
            "model": "no-such-adapter", "input": "a", "parameters": {"adapter_source": source}})
        assert refused.status_code == status, refused.text


def test_a_text_that_is_too_long_names_the_field(own_server):
    running = own_server("--max-total-tokens", "16")
    for route, name in (("/embed", "inputs"), ("/v1/embeddings", "input")):
        refused = requests.post(running.url + route, json={"model": "", name: "word " * 40}, timeout=60)
        assert "the prompt must have at most 15 tokens" in refused.text
        assert route == "/embed" or refused.json()["error"]["param"] == name


def test_refusals_keep_their_protocols(server):
    unknown = requests.post(server.url + "/v1/embeddings", timeout=60,
                            json={"model": "", "input": "a", "parameters": {"adapter_id": "no-such-adapter"}})
    assert unknown.status_code == 404 and unknown.json()["error_code"] == "adapter_not_found"
    with pytest.raises((openai.UnprocessableEntityError, openai.BadRequestError)):
        vectors(server, "a", dimensions=3)
    with pytest.raises(ValidationError):
        lorax.Client(server.url).embed("")
    too_long = requests.post(server.url + "/embed", timeout=60, json={"inputs": "word " * 5000})
    assert too_long.status_code == 422 and too_long.json()["error_type"] == "validation"
    body = json.dumps({"model": "", "input": ["a", "word " * 5000]})
    refused = requests.post(server.url + "/v1/embeddings", data=body, timeout=60,
                            headers={"content-type": "application/json"})
    assert refused.status_code in (400, 422) and "error" in refused.json()
