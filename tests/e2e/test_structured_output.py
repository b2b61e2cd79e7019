"""Answers under JSON schemas, regexes, grammars and choices, through the clients that users have."""

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor

import lorax
import openai
import pytest
import requests

PROMPT = "The quick brown fox"
USER = [{"role": "user", "content": "Make one."}]

# Bounded in every direction, so that a model of random weights reaches the end.
SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 12},
        "count": {"type": "integer", "minimum": 0, "maximum": 999},
        "kind": {"enum": ["shoal", "school", "swarm"]},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,5}$"}, "minItems": 1, "maxItems": 3},
        "deep": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"ok": {"type": "boolean"}},
                                              "required": ["ok"], "additionalProperties": False}]},
    },
    "required": ["title", "count", "kind", "tags", "deep"],
    "additionalProperties": False,
}


def check(text: str) -> dict:
    """`text` is JSON that SCHEMA admits."""
    made = json.loads(text)
    assert list(made) == ["title", "count", "kind", "tags", "deep"]
    assert isinstance(made["title"], str) and len(made["title"]) <= 12
    assert type(made["count"]) is int and 0 <= made["count"] <= 999
    assert made["kind"] in ("shoal", "school", "swarm")
    assert 1 <= len(made["tags"]) <= 3 and all(re.fullmatch("[a-z]{1,5}", tag) for tag in made["tags"])
    assert made["deep"] is None or (list(made["deep"]) == ["ok"] and isinstance(made["deep"]["ok"], bool))
    return made


def json_schema(schema) -> dict:
    return {"type": "json_schema", "json_schema": {"name": "made", "schema": schema, "strict": True}}


@pytest.fixture
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)


@pytest.mark.parametrize("model", ["", "tenant-1"])
def test_every_seed_at_temperature_one_makes_what_the_schema_admits(client, model):
    def one(seed: int):
        return client.chat.completions.create(model=model, messages=USER, temperature=1, seed=seed, max_tokens=400,
                                              response_format=json_schema(SCHEMA)).choices[0]

    with ThreadPoolExecutor(8) as pool:
        choices = list(pool.map(one, range(24)))
    assert [choice.finish_reason for choice in choices] == ["stop"] * 24
    made = [json.dumps(check(choice.message.content)) for choice in choices]
    assert len(set(made)) > 12


def test_streamed_whole_native_and_both_routes_agree(server, client):
    request = {"model": "tenant-2", "prompt": PROMPT, "temperature": 0.9, "seed": 11, "max_tokens": 400,
               "response_format": json_schema(SCHEMA)}
    whole = requests.post(server.url + "/v1/completions", json=request, timeout=60).json()["choices"][0]
    check(whole["text"])
    assert whole["finish_reason"] == "stop"
    stream = requests.post(server.url + "/v1/completions", json={**request, "stream": True}, timeout=60).content
    chunks = [json.loads(event[6:]) for event in stream.split(b"\n\n") if event.startswith(b"data: {")]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["text"]

    parameters = {"adapter_id": "tenant-2", "temperature": 0.9, "seed": 11, "do_sample": True, "max_new_tokens": 400,
                  "response_format": {"type": "json_object", "schema": SCHEMA}}
    native = server.generate(PROMPT, **parameters)
    assert native["generated_text"] == whole["text"]
    assert native["details"]["finish_reason"] == "eos_token"
    events = list(lorax.Client(server.url).generate_stream(
        PROMPT, adapter_id="tenant-2", temperature=0.9, seed=11, do_sample=True, max_new_tokens=400,
        response_format={"type": "json_object", "schema": SCHEMA}))
    assert [event.token.id for event in events] == [token["id"] for token in native["details"]["tokens"]]
    assert events[-1].generated_text == whole["text"]


def test_any_object_without_a_schema(server):
    for format in ({"type": "json_object", "schema": None}, {"type": "json_object"}):
        answer = server.generate(PROMPT, max_new_tokens=60, seed=3, do_sample=True, response_format=format)
        assert answer["generated_text"].startswith("{")
    free = server.generate(PROMPT, max_new_tokens=60, response_format={"type": "text", "schema": SCHEMA})
    assert free["generated_text"] == server.generate(PROMPT, max_new_tokens=60)["generated_text"]


@pytest.mark.parametrize(("fields", "pattern"), [
    ({"guided_regex": r"^[A-Z]{3}-\d{4}$"}, r"[A-Z]{3}-[0-9]{4}"),
    ({"structured_outputs": {"regex": "(ab|cd){2,6}!"}}, "(ab|cd){2,6}!"),
    ({"guided_choice": ["positive", "negative", "so-so"]}, "positive|negative|so-so"),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
    ({"guided_grammar": 'start: "[" item ("," item){0,3} "]"\nitem: /[0-9]{1,4}/'}, r"\[[0-9]{1,4}(,[0-9]{1,4}){0,3}\]"),
    ({"structured_outputs": {"json": {"type": "array", "items": {"type": "null"}, "maxItems": 2, "minItems": 2}}},
     r"\[\s*null\s*,\s*null\s*\]"),
    ({"guided_json": json.dumps({"const": {"a": 1}})}, r"\{\s*\"a\"\s*:\s*1\s*\}"),
])
def test_the_fields_of_vllm_users(client, fields, pattern):
    def one(seed: int) -> str:
        choice = client.completions.create(model="", prompt=PROMPT, max_tokens=200, temperature=0.9, seed=seed,
                                           extra_body=fields).choices[0]
        assert choice.finish_reason == "stop"
        return choice.text

    with ThreadPoolExecutor(4) as pool:
        for text in pool.map(one, range(8)):
            assert re.fullmatch(pattern, text), text


def test_neighbours_without_a_grammar_answer_as_alone(server, client):
    alone = server.token_ids(PROMPT, max_new_tokens=60, adapter_id="tenant-0")
    with ThreadPoolExecutor(6) as pool:
        guided = [pool.submit(client.chat.completions.create, model="tenant-0", messages=USER, seed=seed, max_tokens=300,
                              temperature=1, response_format=json_schema(SCHEMA)) for seed in range(4)]
        beside = [pool.submit(server.token_ids, PROMPT, max_new_tokens=60, adapter_id="tenant-0") for _ in range(2)]
        assert [each.result() for each in beside] == [alone, alone]
        for each in guided:
            check(each.result().choices[0].message.content)


def test_answers_that_were_preempted_go_on_exactly(own_server, tiny_folder):
    def ask(server, seed: int) -> list[int]:
        return server.token_ids(PROMPT, max_new_tokens=200, do_sample=True, seed=seed, response_format={
            "type": "json_object", "schema": {"type": "array", "items": {"type": "integer", "maximum": 99, "minimum": 10},
                                              "minItems": 40, "maxItems": 60}})

    roomy = own_server()
    expected = [ask(roomy, seed) for seed in range(8)]
    tight = own_server("--kv-cache-memory", "256KiB", "--max-total-tokens", "300")
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda seed: ask(tight, seed), range(8))) == expected
    assert tight.metric("shoal_preemptions") > 0
    assert tight.metric("shoal_grammar_masks") > 0


def nested(depth: int, inner) -> dict:
    for _ in range(depth):
        inner = {"type": "object", "properties": {"a": inner}, "required": ["a"]}
    return inner


def hostile() -> dict:
    many = {f"p{i}": {"type": "string", "pattern": f"^x{i}[a-z]*$"} for i in range(400)}
    return {
        "nested too deeply for JSON": {"guided_json": nested(60, {"type": "null"})},
        "nested in a text": {"guided_json": '{"not":' * 5000 + "{}" + "}" * 5000},
        "no such type": {"response_format": json_schema({"type": "strange"})},
        "no such definition": {"response_format": json_schema({"$ref": "#/$defs/none"})},
        "a schema elsewhere": {"response_format": json_schema({"$ref": "http://127.0.0.1:9/schema.json"})},
        "itself": {"response_format": json_schema({"$ref": "#"})},
        "nothing fits": {"response_format": json_schema({"type": "object", "properties": {"a": False}, "required": ["a"]})},
        "huge": {"guided_json": {"enum": ["x" * 100 + str(i) for i in range(4000)]}},
        "not a schema": {"guided_json": "not json"},
        "many patterns": {"guided_json": {"type": "object", "patternProperties": {
            schema["pattern"]: schema for schema in many.values()}}},
        "a bad regex": {"guided_regex": "(a"},
        "a regex that looks ahead": {"guided_regex": "(?=x)y"},
        "a regex nested deeply": {"guided_regex": "(" * 5000 + "a" + ")" * 5000},
        "a bad grammar": {"guided_grammar": "start: nowhere"},
        "an endless grammar": {"guided_grammar": "start: start"},
        "a grammar nested deeply": {"guided_grammar": "start: " + "(" * 20000 + '"a"' + ")" * 20000},
        "no choice": {"guided_choice": []},
        "two at once": {"guided_regex": "a", "guided_choice": ["a"]},
    }


@pytest.mark.parametrize("name", hostile())
def test_hostile_grammars_are_refused_fast_and_the_server_goes_on(server, name):
    fields = hostile()[name]
    for stream in (False, True):
        begin = time.monotonic()
        response = requests.post(server.url + "/v1/completions", timeout=60, json={
            "model": "", "prompt": PROMPT, "max_tokens": 5, "stream": stream, **fields})
        seconds = time.monotonic() - begin
        assert response.status_code == 400, f"{name}: {response.status_code} {response.text[:300]}"
        assert response.json()["error"]["message"]
        assert seconds < 8, f"{name}: {seconds}"
    assert requests.get(server.url + "/health", timeout=10).status_code == 200
    assert len(server.token_ids(PROMPT, max_new_tokens=4)) == 4


def test_a_grammar_too_complex_to_follow_fails_alone(server):
    alone = server.token_ids(PROMPT, max_new_tokens=40)
    wide = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(2000)}}
    with ThreadPoolExecutor(2) as pool:
        beside = pool.submit(server.token_ids, PROMPT, max_new_tokens=40)
        response = requests.post(server.url + "/v1/completions", timeout=60, json={
            "model": "", "prompt": PROMPT, "max_tokens": 50, "guided_json": wide})
        assert response.status_code == 400 and "cannot go on" in response.json()["error"]["message"], response.text
        assert beside.result() == alone


def test_a_native_stream_tells_of_a_bad_schema_in_an_event(server):
    body = {"inputs": PROMPT, "parameters": {"response_format": {"type": "json_object", "schema": {"type": "strange"}}}}
    whole = requests.post(server.url + "/generate", json=body, timeout=60)
    assert whole.status_code == 422 and whole.json()["error_type"] == "validation"
    stream = requests.post(server.url + "/generate_stream", json=body, timeout=60)
    assert stream.status_code == 200 and json.loads(stream.text[6:])["error_type"] == "validation"


def test_a_reader_that_goes_leaves_nothing_behind(server):
    response = requests.post(server.url + "/v1/completions", stream=True, timeout=60, json={
        "model": "", "prompt": PROMPT, "max_tokens": 900, "stream": True, "guided_regex": "[a-z]+"})
    assert next(response.iter_lines())
    response.close()
    server.wait_idle()


def test_several_answers_are_each_held_to_the_form(server, client):
    request = {"model": "", "prompt": PROMPT, "temperature": 0.9, "max_tokens": 400, "extra_body": {"guided_json": SCHEMA}}
    alone = [client.completions.create(**request, seed=3 + i).choices[0].text for i in range(3)]
    together = client.completions.create(**request, seed=3, n=3).choices
    assert [choice.text for choice in together] == alone
    for text in alone:
        check(text)
    with pytest.raises(openai.BadRequestError, match="guided_json"):
        client.completions.create(**{**request, "extra_body": {"guided_json": {"type": 5}}}, n=3)
    server.wait_idle()


def test_an_answer_that_is_whole_ends_before_its_least_length(server, client):
    request = {"model": "", "prompt": PROMPT, "temperature": 0.9, "max_tokens": 60}
    choice = client.completions.create(**request, extra_body={"guided_regex": "ab{2}c", "min_tokens": 50}).choices[0]
    assert (choice.text, choice.finish_reason) == ("abbc", "stop")
    # Where it may go on, it must.
    choice = client.completions.create(**request, extra_body={"guided_regex": "[ab]+", "min_tokens": 50})
    assert choice.usage.completion_tokens >= 50
