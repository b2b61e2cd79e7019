"""n, best_of and several prompts through the official clients; every answer is the one that its seed gives alone."""

import lorax
import openai
import pytest
from conftest import ADAPTERS, ROOT, Server
from lorax.errors import ValidationError

PROMPT = "The quick brown fox"


@pytest.fixture
def openai_client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def collected(chunks) -> tuple[dict, dict, object]:
    """Texts and finish reasons by index, and the usage."""
    texts, reasons, usage = {}, {}, None
    for chunk in chunks:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            part = choice.text if hasattr(choice, "text") else choice.delta.content
            assert choice.index not in reasons, "a chunk after the last one"
            texts[choice.index] = texts.get(choice.index, "") + (part or "")
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    return texts, reasons, usage


@pytest.mark.parametrize("model", ["", ADAPTERS[4]])
@pytest.mark.parametrize("logprobs", [None, 2])
def test_choices_are_the_answers_of_their_seeds(openai_client, model, logprobs):
    request = {"model": model, "prompt": PROMPT, "max_tokens": 15, "temperature": 1.2, "logprobs": logprobs}
    alone = [openai_client.completions.create(**request, seed=40 + i) for i in range(4)]
    assert len({answer.choices[0].text for answer in alone}) == 4
    whole = openai_client.completions.create(**request, seed=40, n=4)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    for choice, answer in zip(whole.choices, alone):
        assert choice.text == answer.choices[0].text
        assert choice.logprobs == answer.choices[0].logprobs
    assert whole.usage.prompt_tokens == alone[0].usage.prompt_tokens
    assert whole.usage.completion_tokens == sum(answer.usage.completion_tokens for answer in alone) == 60
    stream = openai_client.completions.create(**request, seed=40, n=4, stream=True, stream_options={"include_usage": True})
    texts, reasons, usage = collected(stream)
    assert texts == {i: choice.text for i, choice in enumerate(whole.choices)}
    assert reasons == dict.fromkeys(range(4), "length")
    assert usage == whole.usage


def test_chat_choices(openai_client):
    request = {"model": "", "messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 10, "seed": 9, "n": 3}
    whole = openai_client.chat.completions.create(**request)
    assert len({choice.message.content for choice in whole.choices}) == 3
    texts, reasons, usage = collected(openai_client.chat.completions.create(**request, stream=True))
    assert texts == {choice.index: choice.message.content for choice in whole.choices}
    assert usage == whole.usage


def test_prompt_lists(server, openai_client):
    prompts = [PROMPT, "Many small fish", "A server"]
    alone = [openai_client.completions.create(model="tenant-2", prompt=prompt, max_tokens=9, temperature=0)
             for prompt in prompts]
    whole = openai_client.completions.create(model="tenant-2", prompt=prompts, max_tokens=9, temperature=0)
    assert [choice.text for choice in whole.choices] == [answer.choices[0].text for answer in alone]
    assert whole.usage.prompt_tokens == sum(answer.usage.prompt_tokens for answer in alone)
    scored = openai_client.completions.create(model="tenant-2", prompt=prompts, max_tokens=1, temperature=0, logprobs=1,
                                              echo=True)
    for choice, prompt in zip(scored.choices, prompts):
        assert choice.text.startswith(prompt)
        assert choice.logprobs == openai_client.completions.create(
            model="tenant-2", prompt=prompt, max_tokens=1, temperature=0, logprobs=1, echo=True).choices[0].logprobs


def test_best_of_is_the_likeliest_by_mean(server, openai_client):
    request = {"model": "", "prompt": PROMPT, "max_tokens": 12, "temperature": 0.8}
    # The native route tells the logprobs of what was sampled.
    alone = [server.generate(PROMPT, max_new_tokens=12, temperature=0.8, seed=70 + i) for i in range(6)]
    means = [sum(token["logprob"] for token in answer["details"]["tokens"]) / 12 for answer in alone]
    order = sorted(range(6), key=lambda i: -means[i])
    answer = openai_client.completions.create(**request, seed=70, n=2, best_of=6)
    assert [choice.text for choice in answer.choices] == [alone[i]["generated_text"] for i in order[:2]]
    assert answer.usage.completion_tokens == 72
    with pytest.raises(openai.BadRequestError, match="best_of.*n. = 2 to 128, given: 1"):
        openai_client.completions.create(**request, n=2, best_of=1)
    with pytest.raises(openai.BadRequestError, match="best_of.*stream"):
        openai_client.completions.create(**request, n=2, best_of=3, stream=True)
    for n in (0, -1, 129):
        with pytest.raises(openai.BadRequestError, match=f"`n` must be from 1 to 128, given: {n}"):
            openai_client.completions.create(**request, n=n)


def test_lorax_best_of(server):
    client = lorax.Client(server.url)
    options = {"max_new_tokens": 8, "do_sample": True, "temperature": 0.9}
    answer = client.generate(PROMPT, best_of=2, return_k_alternatives=2, decoder_input_details=True, **options)
    (other,) = answer.details.best_of_sequences
    mean = [sum(token.logprob for token in each.tokens) / len(each.tokens) for each in (answer.details, other)]
    assert mean[0] >= mean[1]
    assert other.prefill == answer.details.prefill != []
    for each, text in ((answer.details, answer.generated_text), (other, other.generated_text)):
        again = client.generate(PROMPT, seed=each.seed, return_k_alternatives=2, **options)
        assert again.generated_text == text
        assert again.details.tokens == each.tokens
    with pytest.raises(ValidationError, match="best_of.*from 1 to 2"):
        client.generate(PROMPT, best_of=3, **options)


def test_choices_share_the_prompt_with_the_prefix_cache(own_server):
    server = own_server("--prefix-caching")
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    request = {"model": "", "prompt": PROMPT * 20, "max_tokens": 5, "temperature": 1, "seed": 1}
    client.completions.create(**request, n=6)
    assert server.metric("shoal_prefix_hits") == 5


def test_suffix_is_fill_in_the_middle(openai_client, tmp_path):
    folder = ROOT / "models" / "santacoder"
    (tmp_path / "model").symlink_to(folder)
    (tmp_path / "adapters").symlink_to(folder / "adapters")
    coder = Server(tmp_path, "--dtype", "float32")
    try:
        client = openai.OpenAI(base_url=coder.url + "/v1", api_key="none", max_retries=0)
        request = {"model": "", "max_tokens": 16, "temperature": 0, "logprobs": 1}
        for prefix, suffix in (("def add(a, b):\n    ", "\n    return c\n"), ("", "return x\n")):
            answer = client.completions.create(**request, prompt=prefix, suffix=suffix)
            raw = client.completions.create(**request, prompt=f"<fim-prefix>{prefix}<fim-suffix>{suffix}<fim-middle>")
            assert answer.choices == raw.choices
            assert answer.usage == raw.usage
            assert "<fim" not in answer.choices[0].text
        # What follows the stop string stays out of every choice, streamed or not.
        request |= {"prompt": "def add(a, b):\n    ", "suffix": "\n    return c\n", "temperature": 1, "seed": 7, "n": 3}
        whole = client.completions.create(**request)
        text = max((choice.text for choice in whole.choices), key=len)
        stop = text[len(text) // 2:len(text) // 2 + 2]
        cut = client.completions.create(**request, stop=stop)
        streamed = ["", "", ""]
        for chunk in client.completions.create(**request, stop=stop, stream=True):
            for choice in chunk.choices:
                streamed[choice.index] += choice.text
        for before, after, parts in zip(whole.choices, cut.choices, streamed):
            assert after.text == parts == before.text.partition(stop)[0]
            assert after.finish_reason == ("stop" if stop in before.text else before.finish_reason)
        assert any(stop in choice.text for choice in whole.choices)
        echoed = client.completions.create(model="", max_tokens=4, temperature=0, prompt="def", suffix="c", echo=True, n=2)
        assert all(choice.text.startswith("def") and "<fim" not in choice.text for choice in echoed.choices)
    finally:
        assert coder.stop() == 0
    with pytest.raises(openai.BadRequestError, match="suffix.*fim-prefix"):
        openai_client.completions.create(model="", prompt="a", suffix="b")
