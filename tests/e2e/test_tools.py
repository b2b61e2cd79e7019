"""Tools on /v1/chat/completions through the openai client."""

import json
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
import requests

USER = [{"role": "user", "content": "What is the weather like in Oslo?"}]
TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather",
        "description": "The weather of a day.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 10}, "day": {"$ref": "#/$defs/day"}},
            "required": ["city", "day"],
            "additionalProperties": False,
            "$defs": {"day": {"enum": ["today", "tomorrow"]}},
        }}},
    {"type": "function", "function": {"name": "stop", "strict": True}},
]


@pytest.fixture
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)


def check(call) -> None:
    assert call.type == "function" and call.id.startswith("call_")
    arguments = json.loads(call.function.arguments)
    if call.function.name == "stop":
        assert arguments == {}
    else:
        assert call.function.name == "get_weather"
        assert list(arguments) == ["city", "day"]
        assert isinstance(arguments["city"], str) and len(arguments["city"]) <= 10
        assert arguments["day"] in ("today", "tomorrow")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_call_that_must_be_made_is_made_whatever_the_seed(client, choice):
    def one(seed: int):
        return client.chat.completions.create(model="", messages=USER, tools=TOOLS, tool_choice=choice, temperature=1,
                                              seed=seed, max_tokens=300).choices[0]

    with ThreadPoolExecutor(8) as pool:
        choices = list(pool.map(one, range(24)))
    for each in choices:
        assert each.finish_reason == "tool_calls"
        assert each.message.content is None and each.message.role == "assistant"
        assert len(each.message.tool_calls) == 1
        check(each.message.tool_calls[0])
    names = {each.message.tool_calls[0].function.name for each in choices}
    assert names == ({"get_weather", "stop"} if choice == "required" else {"get_weather"})


@pytest.mark.parametrize("model", ["", "tenant-3"])
def test_a_streamed_call_is_the_whole_one(client, model):
    request = {"model": model, "messages": USER, "tools": TOOLS, "tool_choice": "required", "temperature": 1, "seed": 5,
               "max_tokens": 300}
    whole = client.chat.completions.create(**request).choices[0].message.tool_calls[0]
    chunks = list(client.chat.completions.create(**request, stream=True))
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert calls[0].id and calls[0].type == "function" and calls[0].function.name == whole.function.name
    assert all(call.index == 0 for call in calls)
    assert all(call.id is None and call.function.name is None for call in calls[1:])
    assert "".join(call.function.arguments for call in calls) == whole.function.arguments
    assert not any(chunk.choices[0].delta.content for chunk in chunks)
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["tool_calls"]


def test_auto_is_words_or_a_call_and_streams_the_same(client):
    kinds = set()
    for seed in range(12):
        request = {"model": "tenant-1", "messages": USER, "tools": TOOLS, "temperature": 1, "seed": seed, "max_tokens": 60}
        whole = client.chat.completions.create(**request).choices[0]
        kinds.add("call" if whole.message.tool_calls else "words")
        if whole.message.tool_calls and whole.finish_reason == "tool_calls":
            check(whole.message.tool_calls[0])
        chunks = list(client.chat.completions.create(**request, stream=True))
        words = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert words == (whole.message.content or "")
    assert "words" in kinds


def test_none_leaves_the_answer_free(client):
    request = {"model": "", "messages": USER, "temperature": 0, "max_tokens": 20}
    free = client.chat.completions.create(**request)
    told = client.chat.completions.create(**request, tools=TOOLS, tool_choice="none")
    assert told.choices[0].message.tool_calls is None
    assert told.choices[0].message.content == free.choices[0].message.content  # this template shows no tools


def test_a_conversation_goes_on_after_a_call(client):
    first = client.chat.completions.create(model="", messages=USER, tools=TOOLS, tool_choice="required", temperature=1,
                                           seed=2, max_tokens=300).choices[0].message
    messages = [*USER, first.model_dump(exclude_none=True),
                {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "rain"}]
    answer = client.chat.completions.create(model="", messages=messages, tools=TOOLS, tool_choice="none", max_tokens=10)
    without = client.chat.completions.create(model="", messages=USER, max_tokens=10)
    call = first.tool_calls[0].function
    assert answer.usage.prompt_tokens > without.usage.prompt_tokens + len(call.arguments) // 8


def test_the_template_that_knows_tools_is_given_them(own_server, tiny_folder, tmp_path):
    config = json.loads((tiny_folder / "model" / "tokenizer_config.json").read_text())
    config["chat_template"] = (
        "{% if tools %}{% for tool in tools %}[{{ tool.function.name }}]{% endfor %}{% endif %}"
        "{% for m in messages %}{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{{ c.function.name }}({{ c.function.arguments.city }}){% endfor %}{{ m.tool_call_id or '' }};{% endfor %}")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    server = own_server("--tokenizer-config-path", str(path))

    def prompt_tokens(text: str) -> int:
        return len(requests.post(server.url + "/tokenize", timeout=60, json={
            "inputs": text, "add_special_tokens": False}).json())

    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
    response = requests.post(server.url + "/v1/chat/completions", timeout=60, json={
        "model": "", "max_tokens": 1, "tools": TOOLS, "tool_choice": "none",
        "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [call]},
                     {"role": "tool", "tool_call_id": "c1", "content": "rain"}]})
    expected = "[get_weather][stop]user:a;assistant:get_weather(Oslo);tool:rainc1;"
    assert response.json()["usage"]["prompt_tokens"] == prompt_tokens(expected)


@pytest.mark.parametrize(("param", "fields"), [
    ("tool_choice", {"tool_choice": "required"}),
    ("tool_choice", {"tools": TOOLS, "tool_choice": "nobody"}),
    ("tools[0].function.name", {"tools": [{"type": "function", "function": {"name": "no name"}}]}),
    ("tools", {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "strange"}}}]}),
    ("response_format", {"tools": TOOLS, "response_format": {"type": "json_object"}}),
])
def test_what_cannot_be_called_is_named(server, param, fields):
    response = requests.post(server.url + "/v1/chat/completions", timeout=60, json={
        "model": "", "max_tokens": 2, "messages": USER, **fields})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize("stream", [False, True])
def test_each_of_several_choices_is_a_call_of_its_own(client, stream):
    request = {"model": "", "messages": USER, "tools": TOOLS, "tool_choice": "required", "temperature": 1,
               "max_tokens": 300}
    alone = [client.chat.completions.create(**request, seed=5 + i).choices[0].message.tool_calls[0].function
             for i in range(3)]
    if stream:
        arguments, ids = [""] * 3, [set() for _ in range(3)]
        for chunk in client.chat.completions.create(**request, seed=5, n=3, stream=True):
            for choice in chunk.choices:
                for call in choice.delta.tool_calls or []:
                    arguments[choice.index] += call.function.arguments or ""
                    ids[choice.index] |= {call.id} - {None}
    else:
        choices = client.chat.completions.create(**request, seed=5, n=3).choices
        arguments = [choice.message.tool_calls[0].function.arguments for choice in choices]
        ids = [{choice.message.tool_calls[0].id} for choice in choices]
    assert arguments == [function.arguments for function in alone]
    assert all(len(each) == 1 for each in ids) and len(set.union(*ids)) == 3
