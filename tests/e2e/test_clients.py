"""The clients that users have, unpatched."""

import asyncio

import lorax
import openai
import pytest
import requests
from conftest import ADAPTERS
from lorax.errors import GenerationError, ValidationError
from tokenizers import Tokenizer

PROMPT = "The quick brown fox"


@pytest.fixture
def lorax_client(server):
    return lorax.Client(server.url)


@pytest.fixture
def openai_client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


# --- lorax-client ---


def test_lorax_generate(lorax_client):
    answer = lorax_client.generate(PROMPT, max_new_tokens=12)
    assert answer.details.generated_tokens == 12
    assert answer.details.finish_reason == "length"
    assert len(answer.details.tokens) == 12
    assert answer.details.seed is None
    assert all(token.logprob <= 0 for token in answer.details.tokens)
    assert "".join(token.text for token in answer.details.tokens).startswith(answer.generated_text.rstrip("\ufffd"))


@pytest.mark.parametrize("adapter", [None, *ADAPTERS])
def test_lorax_stream_equals_whole(lorax_client, adapter):
    options = {"max_new_tokens": 30, "adapter_id": adapter, "adapter_source": "local" if adapter else None}
    whole = lorax_client.generate(PROMPT, **options)
    events = list(lorax_client.generate_stream(PROMPT, **options))
    assert [event.token.id for event in events] == [token.id for token in whole.details.tokens]
    assert [event.token.logprob for event in events] == [token.logprob for token in whole.details.tokens]
    assert events[-1].generated_text == whole.generated_text
    assert events[-1].details.generated_tokens == 30
    assert all(event.generated_text is None for event in events[:-1])


def test_adapters_all_differ(lorax_client):
    answers = {
        tuple(token.id for token in lorax_client.generate(PROMPT, max_new_tokens=30, adapter_id=adapter).details.tokens)
        for adapter in [None, *ADAPTERS]
    }
    assert len(answers) == 9


def test_lorax_sampling_is_reproducible(lorax_client):
    options = {"max_new_tokens": 20, "do_sample": True, "temperature": 0.9, "top_k": 50, "top_p": 0.95}
    first = lorax_client.generate(PROMPT, seed=7, **options)
    again = lorax_client.generate(PROMPT, seed=7, **options)
    other = lorax_client.generate(PROMPT, seed=8, **options)
    assert first.generated_text == again.generated_text
    assert first.details.seed == 7
    assert first.generated_text != other.generated_text
    unset = lorax_client.generate(PROMPT, **options)
    assert unset.details.seed is not None
    assert lorax_client.generate(PROMPT, seed=unset.details.seed, **options).generated_text == unset.generated_text


def test_lorax_stop_and_full_text(lorax_client):
    whole = lorax_client.generate(PROMPT, max_new_tokens=40).generated_text
    stop = next(whole[i:i + 2] for i in range(5, len(whole)) if whole[i:i + 2].isascii() and len(whole[i:i + 2]) == 2)
    answer = lorax_client.generate(PROMPT, max_new_tokens=40, stop_sequences=[stop])
    assert answer.generated_text == whole[:whole.index(stop) + 2]
    assert answer.details.finish_reason == "stop_sequence"
    full = lorax_client.generate(PROMPT, max_new_tokens=5, return_full_text=True)
    assert full.generated_text.startswith(PROMPT)


def test_lorax_errors(lorax_client):
    with pytest.raises(ValidationError, match="max_new_tokens"):
        lorax_client.generate(PROMPT, max_new_tokens=100_000)
    with pytest.raises(GenerationError, match="no-such-adapter"):
        lorax_client.generate(PROMPT, max_new_tokens=5, adapter_id="no-such-adapter", adapter_source="local")
    with pytest.raises(GenerationError):
        lorax_client.generate(PROMPT, max_new_tokens=5, adapter_id="../model", adapter_source="local")
    with pytest.raises(ValidationError):
        list(lorax_client.generate_stream(PROMPT, max_new_tokens=100_000))
    with pytest.raises(GenerationError):
        list(lorax_client.generate_stream(PROMPT, max_new_tokens=5, adapter_id="nope", adapter_source="local"))
    with pytest.raises(ValidationError, match="best_of"):
        lorax_client.generate(PROMPT, max_new_tokens=5, best_of=3, do_sample=True)


def test_lorax_async(server, lorax_client):
    expected = lorax_client.generate(PROMPT, max_new_tokens=10, adapter_id=ADAPTERS[0])

    async def run():
        client = lorax.AsyncClient(server.url)
        whole = await client.generate(PROMPT, max_new_tokens=10, adapter_id=ADAPTERS[0])
        events = [event async for event in client.generate_stream(PROMPT, max_new_tokens=10, adapter_id=ADAPTERS[0])]
        return whole, events

    whole, events = asyncio.run(run())
    assert whole.generated_text == expected.generated_text == events[-1].generated_text
    assert len(events) == 10


# --- openai ---


def test_openai_models(openai_client):
    ids = [model.id for model in openai_client.models.list()]
    assert set(ADAPTERS) < set(ids)
    assert openai_client.models.retrieve("tenant-1").id == "tenant-1"
    with pytest.raises(openai.NotFoundError):
        openai_client.models.retrieve("tenant-99")


@pytest.mark.parametrize("model", ["", ADAPTERS[2], ADAPTERS[7]])
def test_openai_completion_equals_native(server, openai_client, model):
    native = server.generate(PROMPT, max_new_tokens=25, adapter_id=model)
    answer = openai_client.completions.create(model=model, prompt=PROMPT, max_tokens=25, temperature=0)
    assert answer.choices[0].text == native["generated_text"]
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 25
    assert answer.id.startswith("cmpl-")
    chunks = list(openai_client.completions.create(model=model, prompt=PROMPT, max_tokens=25, temperature=0, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == native["generated_text"]
    assert len({chunk.id for chunk in chunks}) == 1


def test_openai_chat(openai_client):
    request = {
        "model": "tenant-3",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi!"}],
        "max_tokens": 20,
        "temperature": 0,
    }
    whole = openai_client.chat.completions.create(**request)
    assert whole.choices[0].message.role == "assistant"
    assert whole.model == "tenant-3"
    chunks = list(openai_client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert chunks[0].choices[0].delta.role == "assistant"


def test_openai_chat_markers_in_messages_stay_text(openai_client):
    def prompt_tokens(content: str) -> int:
        answer = openai_client.chat.completions.create(
            model="", messages=[{"role": "user", "content": content}], max_tokens=1, temperature=0)
        return answer.usage.prompt_tokens

    assert prompt_tokens("x<|im_end|>") > prompt_tokens("x") + 1


def test_openai_stop_is_cut(openai_client):
    request = {"model": "", "prompt": PROMPT, "max_tokens": 40, "temperature": 0}
    whole = openai_client.completions.create(**request).choices[0].text
    stop = next(whole[i:i + 2] for i in range(5, len(whole)) if whole[i:i + 2].isascii() and len(whole[i:i + 2]) == 2)
    cut = openai_client.completions.create(**request, stop=stop).choices[0]
    assert cut.text == whole[:whole.index(stop)]
    assert cut.finish_reason == "stop"


def test_openai_errors(openai_client):
    with pytest.raises(openai.NotFoundError):
        openai_client.completions.create(model="no-such-adapter", prompt="a", max_tokens=2)
    with pytest.raises(openai.NotFoundError):
        openai_client.completions.create(model="no-such-adapter", prompt="a", max_tokens=2, stream=True)
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        openai_client.completions.create(model="", prompt="a", max_tokens=100_000)
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        openai_client.completions.create(model="", prompt="a", max_tokens=-1)
    with pytest.raises(openai.BadRequestError, match="`n`"):
        openai_client.completions.create(model="", prompt="a", n=0)
    with pytest.raises(openai.BadRequestError):
        openai_client.chat.completions.create(model="", messages=[])
    with pytest.raises(openai.BadRequestError):
        openai_client.completions.create(model="", prompt="a", stop="")


# --- the rest ---


def test_tokenize_is_exact(server, tiny_folder):
    text = "Zwölf fish, 12 👍 <|im_end|>"
    expected = Tokenizer.from_file(str(tiny_folder / "model" / "tokenizer.json")).encode(text)
    tokens = requests.post(server.url + "/tokenize", json={"inputs": text}, timeout=60).json()
    assert [token["id"] for token in tokens] == expected.ids
    assert [token["text"] for token in tokens] == expected.tokens
    assert [(token["start"], token["stop"]) for token in tokens] == expected.offsets


def test_truncate_keeps_the_last_tokens(server):
    text = "Many small fish swim as one shoal. " * 5
    ids = [token["id"] for token in requests.post(server.url + "/tokenize", json={"inputs": text}, timeout=60).json()]
    answer = server.generate(text, truncate=7, max_new_tokens=6)
    assert answer["details"]["prompt_tokens"] == 7
    direct = requests.post(server.url + "/v1/completions",
                           json={"model": "", "prompt": ids[-7:], "max_tokens": 6, "temperature": 0}, timeout=60)
    assert direct.json()["choices"][0]["text"] == answer["generated_text"]


def test_info_and_health(server):
    info = requests.get(server.url + "/info", timeout=60).json()
    assert info["max_total_tokens"] == 1024
    assert info["max_input_length"] == 1023
    assert requests.get(server.url + "/health", timeout=60).status_code == 200
    assert requests.get(server.url + "/", timeout=60).status_code == 200


def test_a_native_prompt_may_be_a_chat(server):
    def generate(inputs: str, **parameters) -> requests.Response:
        return requests.post(server.url + "/generate", timeout=60, json={
            "inputs": inputs, "parameters": {"max_new_tokens": 8, "details": True, **parameters}})

    native = generate("What is </s> for?", apply_chat_template=True, return_full_text=True)
    chat = requests.post(server.url + "/v1/chat/completions", timeout=60, json={
        "model": "", "messages": [{"role": "user", "content": "What is </s> for?"}], "max_tokens": 8, "temperature": 0}).json()
    assert native.json()["generated_text"] == "What is </s> for?" + chat["choices"][0]["message"]["content"]
    assert native.json()["details"]["prompt_tokens"] == chat["usage"]["prompt_tokens"]
    plain = generate("What is </s> for?")
    assert plain.json()["details"]["prompt_tokens"] != chat["usage"]["prompt_tokens"]
    assert int(native.headers["x-compute-characters"]) > int(plain.headers["x-compute-characters"])
