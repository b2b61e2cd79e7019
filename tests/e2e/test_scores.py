"""Logprobs through the official clients, against teacher forcing and the reference's own numbers; token rules."""

import json
import subprocess

import lorax
import numpy as np
import openai
import pytest
import requests
from conftest import ADAPTERS, BINARY, ROOT, Server, event_json
from lorax.errors import ValidationError
from safetensors.numpy import load_file
from tokenizers import Tokenizer

PROMPT = "The quick brown fox jumps over"
TOLERANCE = 2e-5  # two float32 sums over a vocabulary


@pytest.fixture
def openai_client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


@pytest.fixture
def lorax_client(server):
    return lorax.Client(server.url)


def forced_logprobs(model, ids: list[int], out, adapter=None) -> np.ndarray:
    """[tokens, vocab] log-softmax in float64 of the logits that `shoal logits` computes."""
    command = [str(BINARY), "logits", "--model-id", str(model), "--dtype", "float32", "--token-ids",
               ",".join(map(str, ids)), "--output", str(out)]
    if adapter:
        command += ["--adapter-id", str(adapter)]
    subprocess.run(command, check=True, capture_output=True)
    logits = load_file(out)["logits"].astype(np.float64)
    return logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True)) - logits.max(
        -1, keepdims=True)


def vocab_size(folder) -> int:
    """Of the tokenizer: the tiny model has more rows than that."""
    return Tokenizer.from_file(str(folder / "model" / "tokenizer.json")).get_vocab_size()


def tokens_of(server, text: str) -> list[int]:
    return [token["id"] for token in requests.post(server.url + "/tokenize", json={"inputs": text}, timeout=60).json()]


@pytest.mark.parametrize("model", ["", ADAPTERS[1]])
@pytest.mark.parametrize("stream", [False, True])
def test_completion_logprobs_are_teacher_forcings(server, openai_client, tiny_folder, tmp_path, model, stream):
    ids = tokens_of(server, PROMPT)
    plain = openai_client.completions.create(model=model, prompt=PROMPT, max_tokens=10, temperature=0).choices[0]
    request = {"model": model, "prompt": PROMPT, "max_tokens": 10, "temperature": 0, "logprobs": 3, "echo": True}
    if stream:
        chunks = [chunk.choices[0] for chunk in openai_client.completions.create(**request, stream=True)]
        text = "".join(chunk.text for chunk in chunks)
        parts = [chunk.logprobs for chunk in chunks if chunk.logprobs]
        logprobs = sum((part.token_logprobs for part in parts), [])
        tops = sum((part.top_logprobs for part in parts), [])
        tokens = sum((part.tokens for part in parts), [])
        offsets = sum((part.text_offset for part in parts), [])
    else:
        choice = openai_client.completions.create(**request).choices[0]
        text, scores = choice.text, choice.logprobs
        logprobs, tops, tokens, offsets = scores.token_logprobs, scores.top_logprobs, scores.tokens, scores.text_offset
    assert text == PROMPT + plain.text
    answer = server.token_ids(PROMPT, max_new_tokens=10, adapter_id=model)
    adapter = tiny_folder / "adapters" / model if model else None
    forced = forced_logprobs(tiny_folder / "model", ids + answer, tmp_path / "forced", adapter)
    assert logprobs[0] is None and tops[0] is None
    expected = [forced[i, token] for i, token in enumerate((ids + answer)[1:])]
    assert logprobs[1:] == pytest.approx(expected, abs=TOLERANCE)
    num_tokens = vocab_size(tiny_folder)
    for i, top in enumerate(tops[1:]):
        assert 1 <= len(top) <= 4
        assert max(top.values()) == pytest.approx(forced[i, :num_tokens].max(), abs=TOLERANCE)
        if i + 1 >= len(ids):  # greedy: the token is the likeliest, to the last bit
            assert logprobs[i + 1] == max(top.values())
    for token, offset in zip(tokens, offsets):
        assert token.startswith("bytes:") or text[offset:offset + len(token)] == token


def test_chat_logprobs(server, openai_client):
    request = {"model": "tenant-3", "messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 12, "temperature": 0}
    plain = openai_client.chat.completions.create(**request)
    whole = openai_client.chat.completions.create(**request, logprobs=True, top_logprobs=4).choices[0]
    assert whole.message.content == plain.choices[0].message.content
    content = whole.logprobs.content
    assert len(content) == plain.usage.completion_tokens == 12
    assert all(token.logprob == token.top_logprobs[0].logprob and len(token.top_logprobs) == 4 for token in content)
    assert bytes(sum((token.bytes for token in content), [])).decode(errors="replace") == whole.message.content
    chunks = list(openai_client.chat.completions.create(**request, logprobs=True, top_logprobs=4, stream=True))
    streamed = sum((chunk.choices[0].logprobs.content for chunk in chunks if chunk.choices[0].logprobs), [])
    assert [token.model_dump() for token in streamed] == [token.model_dump() for token in content]


def test_lorax_prefill_and_alternatives(server, lorax_client, tiny_folder, tmp_path):
    options = {"max_new_tokens": 6, "adapter_id": ADAPTERS[2], "adapter_source": "local"}
    plain = lorax_client.generate(PROMPT, **options)
    answer = lorax_client.generate(PROMPT, **options, decoder_input_details=True, return_k_alternatives=3)
    assert answer.generated_text == plain.generated_text
    assert plain.details.prefill == []
    ids = [token.id for token in answer.details.prefill]
    assert ids == tokens_of(server, PROMPT)
    assert "".join(token.text for token in answer.details.prefill) == PROMPT
    ids += [token.id for token in answer.details.tokens]
    forced = forced_logprobs(tiny_folder / "model", ids, tmp_path / "forced", tiny_folder / "adapters" / ADAPTERS[2])
    assert answer.details.prefill[0].logprob is None
    expected = [forced[i, token] for i, token in enumerate(ids[1:])]
    num_prompt = len(answer.details.prefill)
    assert [token.logprob for token in answer.details.prefill[1:]] == pytest.approx(expected[:num_prompt - 1], abs=TOLERANCE)
    # What is sampled is a token: the rows past the tokenizer's have no part in it.
    num_tokens = vocab_size(tiny_folder)
    shares = np.log(np.exp(forced[num_prompt - 1:-1, :num_tokens]).sum(-1))
    assert [token.logprob for token in answer.details.tokens] == pytest.approx(expected[num_prompt - 1:] - shares,
                                                                              abs=TOLERANCE)
    for i, token in enumerate(answer.details.tokens):
        likeliest = np.argsort(-forced[num_prompt - 1 + i, :num_tokens])[:3]
        assert [each.id for each in token.alternative_tokens] == likeliest.tolist()
        assert token.alternative_tokens[0].logprob == token.logprob
    body = {"inputs": PROMPT, "parameters": {**options, "return_k_alternatives": 3}}
    lines = requests.post(server.url + "/generate_stream", json=body, timeout=60).content.split(b"\n\n")
    whole = server.generate(PROMPT, **options, return_k_alternatives=3)["details"]["tokens"]
    assert [event_json(line)["token"] for line in lines if line] == whole
    sampled = lorax_client.generate(PROMPT, max_new_tokens=5, seed=3, temperature=0.7, top_k=2, return_k_alternatives=4)
    for token in sampled.details.tokens:
        assert len(token.alternative_tokens) == 2, "what top_k dropped is no alternative"
        assert token.logprob in [each.logprob for each in token.alternative_tokens]
        assert sum(np.exp(each.logprob) for each in token.alternative_tokens) == pytest.approx(1, abs=1e-5)


def test_a_scored_prompt_is_computed_in_spite_of_the_prefix_cache(own_server):
    server = own_server("--prefix-caching")
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    request = {"model": "", "prompt": PROMPT * 6, "max_tokens": 4, "temperature": 0, "logprobs": 1, "echo": True}
    first = client.completions.create(**request)
    again = client.completions.create(**request)
    assert None not in again.choices[0].logprobs.token_logprobs[1:]
    assert again.choices[0] == first.choices[0]
    assert again.usage.prompt_tokens_details.cached_tokens == 0
    plain = client.completions.create(model="", prompt=PROMPT * 6, max_tokens=4, temperature=0)
    assert plain.usage.prompt_tokens_details.cached_tokens > 0
    assert PROMPT * 6 + plain.choices[0].text == first.choices[0].text


def test_long_prompts_are_scored_in_pieces_among_others(server, openai_client):
    ids = tokens_of(server, "Many small fish swim as one shoal. " * 120)[:900]
    alone = openai_client.completions.create(model="", prompt=ids, max_tokens=1, temperature=0, logprobs=0, echo=True)
    stream = openai_client.completions.create(model="", prompt=PROMPT, max_tokens=200, temperature=0, stream=True)
    beside = openai_client.completions.create(model="", prompt=ids, max_tokens=1, temperature=0, logprobs=0, echo=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == server.generate(PROMPT, max_new_tokens=200)["generated_text"]
    assert beside.choices[0].logprobs == alone.choices[0].logprobs
    assert len(alone.choices[0].logprobs.tokens) == 901


def test_prompt_logprobs(server, openai_client):
    echoed = openai_client.completions.create(model="", prompt=PROMPT, max_tokens=1, temperature=0, logprobs=2, echo=True)
    answer = openai_client.completions.create(model="", prompt=PROMPT, max_tokens=1, temperature=0,
                                              extra_body={"prompt_logprobs": 2})
    given = answer.choices[0].model_extra["prompt_logprobs"]
    ids = tokens_of(server, PROMPT)
    assert given[0] is None
    assert [entry[str(token)]["logprob"] for entry, token in zip(given[1:], ids[1:])] == \
        echoed.choices[0].logprobs.token_logprobs[1:-1]
    assert all(sorted(each["rank"] for each in entry.values())[:2] == [1, 2] for entry in given[1:])
    with pytest.raises(openai.BadRequestError, match="prompt_logprobs"):
        openai_client.completions.create(model="", prompt="a", stream=True, extra_body={"prompt_logprobs": 1})


# --- token rules ---


def test_logit_bias(server, openai_client):
    request = {"model": "", "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    first = server.token_ids(PROMPT, max_new_tokens=8)
    banned = openai_client.completions.create(**request, logit_bias={str(first[0]): -100}, logprobs=2)
    lifted = openai_client.chat.completions.create(model="", messages=[{"role": "user", "content": "a"}], temperature=0,
                                                   max_tokens=5, logit_bias={"70": 100}, logprobs=True)
    assert len({token.token for token in lifted.choices[0].logprobs.content}) == 1
    assert first[0] not in tokens_of(server, banned.choices[0].text) or banned.choices[0].text[0] != "\ufffd"
    # The model's own numbers: what was banned is still the likeliest.
    assert banned.choices[0].logprobs.token_logprobs[0] < max(banned.choices[0].logprobs.top_logprobs[0].values())
    assert openai_client.completions.create(**request, logit_bias={}).choices[0].text == \
        openai_client.completions.create(**request).choices[0].text
    for bias, message in [({"x": 1}, "logit_bias"), ({"5": 101}, "-100 to 100, given: 101"), ({"99999": 1}, "vocabulary")]:
        with pytest.raises(openai.BadRequestError, match=message):
            openai_client.completions.create(**request, logit_bias=bias)


def test_min_tokens_hold_back_the_end(server, openai_client):
    request = {"model": "", "prompt": PROMPT, "max_tokens": 20, "temperature": 0}
    ids = server.token_ids(PROMPT, max_new_tokens=20)
    stopped = openai_client.completions.create(**request, extra_body={"stop_token_ids": [ids[2]]})
    assert stopped.usage.completion_tokens == 3
    longer = openai_client.completions.create(**request, extra_body={"stop_token_ids": [ids[2]], "min_tokens": 9})
    assert longer.usage.completion_tokens > 9
    ends = openai_client.completions.create(**request, logit_bias={"2": 100})
    assert ends.usage.completion_tokens == 1 and ends.choices[0].finish_reason == "stop"
    held = openai_client.completions.create(**request, logit_bias={"2": 100}, extra_body={"min_tokens": 5})
    assert held.usage.completion_tokens == 6 and held.choices[0].finish_reason == "stop"
    with pytest.raises(openai.BadRequestError, match="min_tokens.*21 and 20"):
        openai_client.completions.create(**request, extra_body={"min_tokens": 21})


def test_min_p_keeps_what_is_likely(openai_client):
    request = {"model": "", "prompt": PROMPT, "max_tokens": 12, "seed": 5}
    greedy = openai_client.completions.create(**request, temperature=0).choices[0].text
    assert openai_client.completions.create(**request, temperature=1.5, extra_body={"min_p": 1}).choices[0].text == greedy
    assert openai_client.completions.create(**request, temperature=1.5, extra_body={"min_p": 0}).choices[0].text != greedy
    with pytest.raises(openai.BadRequestError, match="min_p.*given: 1.5"):
        openai_client.completions.create(**request, extra_body={"min_p": 1.5})


def test_bad_numbers_name_their_field(openai_client, lorax_client):
    with pytest.raises(openai.BadRequestError, match="logprobs.*from 0 to 20, given: 21"):
        openai_client.completions.create(model="", prompt="a", logprobs=21)
    with pytest.raises(openai.BadRequestError, match="top_logprobs.*given: 25"):
        openai_client.chat.completions.create(model="", messages=[{"role": "user", "content": "a"}], logprobs=True,
                                              top_logprobs=25)
    with pytest.raises(openai.BadRequestError, match="top_logprobs.*needs"):
        openai_client.chat.completions.create(model="", messages=[{"role": "user", "content": "a"}], top_logprobs=2)
    with pytest.raises(ValidationError, match="return_k_alternatives.*given: 100"):
        lorax_client.generate(PROMPT, max_new_tokens=1, return_k_alternatives=100)


# --- trained models: the reference's own numbers ---


def test_gaps_between_the_likeliest_two_are_the_references(trained):
    """The reference recorded, for each greedy step, the largest logit and its distance to the second."""
    server, folder = trained
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    expected = load_file(folder / "reference" / "expected.safetensors")
    prompts = json.loads((folder / "reference" / "prompts.json").read_text())["base"]
    compared = 0
    for i, prompt in enumerate(prompts[:6]):
        greedy, gap, largest = (expected[f"base.p{i}.{key}"] for key in ("greedy", "gap", "largest"))
        answer = client.completions.create(model="", prompt=prompt, max_tokens=48, temperature=0, logprobs=2,
                                           extra_body={"ignore_eos_token": True})
        ids = server.token_ids(prompt, max_new_tokens=48, ignore_eos_token=True)
        for step, top in enumerate(answer.choices[0].logprobs.top_logprobs):
            if ids[step] != greedy[step]:
                break
            values = sorted(top.values(), reverse=True)
            if len(values) == 2:  # pieces of one spelling share a key
                assert values[0] - values[1] == pytest.approx(float(gap[step]), abs=1e-4 * float(largest.max()))
                compared += 1
    assert compared > 100


def test_loglikelihood_requests_of_lm_evaluation_harness(trained, tmp_path):
    """Its `local-completions` model: token ids, one new token, logprobs 1, echo; the context's length cuts the list."""
    server, folder = trained
    for task in sorted(path.stem for path in (folder / "reference" / "tasks").iterdir())[:2]:
        items = [json.loads(line) for line in (folder / "reference/tasks" / f"{task}.jsonl").read_text().splitlines()]
        for item in items[:4]:
            context = tokens_of(server, item["inputs"])
            continuation = tokens_of(server, item["inputs"] + item["answer"])[len(context):]
            assert continuation
            body = {"model": task, "prompt": [context + continuation], "temperature": 0, "max_tokens": 1, "logprobs": 1,
                    "seed": 1234, "echo": True}
            choice = requests.post(server.url + "/v1/completions", json=body, timeout=60).json()["choices"][0]
            scores = choice["logprobs"]["token_logprobs"][len(context):-1]
            tops = choice["logprobs"]["top_logprobs"][len(context):-1]
            forced = forced_logprobs(folder, context + continuation, tmp_path / "forced", folder / "adapters" / task)
            rows = forced[len(context) - 1:-1]
            expected = [row[token] for row, token in zip(rows, continuation)]
            assert sum(scores) == pytest.approx(sum(expected), abs=TOLERANCE * len(scores))
            is_greedy = all(score == max(top.values()) for score, top in zip(scores, tops))
            assert is_greedy == all(row.argmax() == token for row, token in zip(rows, continuation))
