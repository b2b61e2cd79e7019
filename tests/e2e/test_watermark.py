"""Watermarks: texts that the function of docs/watermark.md recognises, and all others that it does not."""

import re

import lorax
import pytest
import requests
from conftest import ROOT, Server

PROMPT = "The quick brown fox"
STYLES = [{}, {"do_sample": True, "seed": 5}, {"temperature": 0.7, "top_k": 40, "seed": 6, "repetition_penalty": 1.1}]


@pytest.fixture(scope="module")
def score():
    """As a reader would copy it."""
    names = {}
    exec(re.search(r"```python\n(.*?)```", (ROOT / "docs/watermark.md").read_text(), re.DOTALL).group(1), names)
    return names["score"]


def sequence_of(server: Server, **parameters) -> list[int]:
    """The prompt's last token and the answer."""
    answer = requests.post(server.url + "/generate", timeout=120, json={"inputs": PROMPT, "parameters": {
        "max_new_tokens": 200, "ignore_eos_token": True, "details": True, "decoder_input_details": True, **parameters}}).json()
    return [answer["details"]["prefill"][-1]["id"], *(token["id"] for token in answer["details"]["tokens"])]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("adapter_id", ["", "tenant-1"])
def test_a_watermark_is_recognised_and_its_lack_too(server, score, style, adapter_id):
    plain = sequence_of(server, adapter_id=adapter_id, **style)
    marked = sequence_of(server, adapter_id=adapter_id, watermark=True, **style)
    assert abs(score(plain)) < 4 < score(marked)
    assert marked == sequence_of(server, adapter_id=adapter_id, watermark=True, **style)


def test_flags_set_its_strength(own_server, score):
    server = own_server("--watermark-gamma", "0.25", "--watermark-delta", "100")
    marked = sequence_of(server, watermark=True, do_sample=True, seed=1)
    pairs = set(zip(marked, marked[1:]))
    assert score(marked, 0.25) == pytest.approx((3 * len(pairs)) ** 0.5), "every token is green"
    unmarked = own_server("--watermark-delta", "0")
    assert sequence_of(unmarked, watermark=True) == sequence_of(unmarked)


def test_streams_and_lorax_client_carry_it(server):
    client = lorax.Client(server.url)
    options = {"max_new_tokens": 30, "do_sample": True, "seed": 9, "watermark": True}
    whole = client.generate(PROMPT, **options)
    streamed = [each.token.id for each in client.generate_stream(PROMPT, **options)]
    assert streamed == [token.id for token in whole.details.tokens]
    assert streamed != [token.id for token in client.generate(PROMPT, **options | {"watermark": False}).details.tokens]
