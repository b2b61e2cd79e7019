"""Tool calls, response_format, embeddings and models through both openai clients: what Python's holds, Node's holds."""

import itertools
import json

import pytest
import requests
from client_processes import OPENAI, run_calls
from conftest import ADAPTERS

USER = [{"role": "user", "content": "What is the weather like in Oslo?"}]
TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "strict": True,
        "parameters": {"type": "object", "additionalProperties": False, "required": ["city", "day"],
                       "properties": {"city": {"type": "string", "maxLength": 10},
                                      "day": {"type": "string", "enum": ["today", "tomorrow"]}}}}},
    {"type": "function", "function": {
        "name": "finish", "strict": True,
        "parameters": {"type": "object", "additionalProperties": False, "required": [], "properties": {}}}},
]
CHOICES = {"required": "required", "named": {"type": "function", "function": {"name": "get_weather"}}, "auto": "auto"}
SCHEMA = {"type": "object", "additionalProperties": False, "required": ["title", "count"],
          "properties": {"title": {"type": "string", "maxLength": 8}, "count": {"type": "integer", "minimum": 0, "maximum": 99}}}
FORMATS = {
    "text": {"type": "text"},
    "json_object": {"type": "json_object"},
    "json_schema": {"type": "json_schema", "json_schema": {"name": "made", "schema": SCHEMA, "strict": True}},
}
WAYS = ["whole", "stream", "helper"]  # helper: the client itself puts a stream together


def tool_calls(url: str) -> list[dict]:
    calls = []
    for model, (name, choice), way, n in itertools.product(["", ADAPTERS[1]], CHOICES.items(), WAYS, [1, 2]):
        body = {"model": model, "messages": USER, "tools": TOOLS, "tool_choice": choice, "temperature": 1, "seed": 3,
                "max_tokens": 300, "n": n, **({"stream": True} if way == "stream" else {})}
        method = "chat.completions.stream" if way == "helper" else "chat.completions.create"
        calls.append({"key": f"{model}|{name}|{n}|{way}", "url": url, "method": method, "body": body})
    return calls


def format_calls(url: str) -> list[dict]:
    calls = []
    for model, (name, wanted), way, n in itertools.product(["", ADAPTERS[1]], FORMATS.items(), WAYS, [1, 2]):
        body = {"model": model, "messages": USER, "response_format": wanted, "temperature": 1, "seed": 3,
                "max_tokens": 300, "n": n, **({"stream": True} if way == "stream" else {})}
        method = "chat.completions.stream" if way == "helper" else "chat.completions.create"
        calls.append({"key": f"{model}|{name}|{n}|{way}", "url": url, "method": method, "body": body})
    return calls


def choices_of(way: str, answers: list[dict]) -> list[dict]:
    """{content, calls: [name, arguments], reason} of each choice, however it came."""
    if way != "stream":
        return [{"content": choice["message"].get("content") or None, "reason": choice["finish_reason"],
                 "calls": [[call["function"]["name"], call["function"]["arguments"]]
                           for call in choice["message"].get("tool_calls") or []]} for choice in answers[0]["choices"]]
    made: dict[int, dict] = {}
    ids: dict[int, set] = {}
    for chunk in answers:
        for choice in chunk["choices"]:
            so_far = made.setdefault(choice["index"], {"content": None, "reason": None, "calls": []})
            so_far["reason"] = choice["finish_reason"] or so_far["reason"]
            if choice["delta"].get("content"):
                so_far["content"] = (so_far["content"] or "") + choice["delta"]["content"]
            for call in choice["delta"].get("tool_calls") or []:
                assert call["index"] == 0
                if call.get("id"):
                    assert call["type"] == "function"
                    ids.setdefault(choice["index"], set()).add(call["id"])
                    so_far["calls"].append([call["function"]["name"], ""])
                so_far["calls"][0][1] += call["function"].get("arguments") or ""
    every = [each for of_choice in ids.values() for each in of_choice]
    assert len(set(every)) == len(every), "each choice's call has an id of its own"
    return [made[index] for index in sorted(made)]


def ended_by_length(result: dict) -> bool:
    """The helper of either client refuses to read such an answer."""
    return result.get("error", {}).get("class") == "LengthFinishReasonError"


@pytest.fixture(scope="module", params=OPENAI)
def client(request):
    return request.param


def test_tool_calls(server, client):
    results = run_calls(client, tool_calls(server.url))
    made = {}
    for key, result in results.items():
        if not ended_by_length(result):
            assert "error" not in result, key
            made[key] = choices_of(key.rsplit("|")[-1], result["answers"])
    kinds = set()
    for key, choices in made.items():
        model, name, n, way = key.split("|")
        assert choices == made[f"{model}|{name}|{n}|whole"], key
        assert len(choices) == int(n)
        for choice in choices:
            kinds.add((name, bool(choice["calls"])))
            if name != "auto":
                assert choice["reason"] == "tool_calls" and choice["content"] is None, key
            for function, arguments in choice["calls"]:
                assert function == "get_weather" or (function == "finish" and name != "named")
                if choice["reason"] == "tool_calls":
                    held = json.loads(arguments)
                    assert list(held) == (["city", "day"] if function == "get_weather" else [])
    assert {("required", True), ("named", True), ("auto", False)} <= kinds
    calls = {call["key"]: call for call in tool_calls(server.url)}
    for key, result in results.items():  # the same through plain HTTP
        if key.endswith("|whole"):
            plain = requests.post(server.url + "/v1/chat/completions", json=calls[key]["body"], timeout=60).json()
            assert choices_of("whole", [plain]) == made[key], key


def test_response_formats(server, client):
    results = run_calls(client, format_calls(server.url))
    for key, result in results.items():
        model, name, n, way = key.split("|")
        if ended_by_length(result):
            assert any(choice["reason"] == "length" for choice in
                       choices_of("whole", results[f"{model}|{name}|{n}|whole"]["answers"])), key
            continue
        assert "error" not in result, key
        choices = choices_of(way, result["answers"])
        assert choices == choices_of("whole", results[f"{model}|{name}|{n}|whole"]["answers"]), key
        assert len(choices) == int(n)
        for choice in choices:
            if name != "text" and choice["reason"] == "stop":
                held = json.loads(choice["content"])
                assert isinstance(held, dict)
                if name == "json_schema":
                    assert list(held) == ["title", "count"] and 0 <= held["count"] <= 99
            if name == "json_schema":
                assert choice["reason"] == "stop", key


def test_embeddings(server, client):
    """Numbers, and the base64 that the clients ask for where nobody says otherwise."""
    texts = ["The quick brown fox", "Zwölf 鳥"]
    calls = [{"key": f"{model}|{form}|{len(given)}", "url": server.url, "method": "embeddings.create",
              "body": {"model": model, "input": given, **({"encoding_format": form} if form else {})}}
             for model in ("", ADAPTERS[1]) for form in (None, "float") for given in (texts[:1], texts)]
    for key, result in run_calls(client, calls).items():
        assert "error" not in result, key
        model, _, count = key.split("|")
        (answer,) = result["answers"]
        assert answer["object"] == "list"
        assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > 0
        assert [each["index"] for each in answer["data"]] == list(range(int(count)))
        for text, each in zip(texts, answer["data"]):
            native = requests.post(server.url + "/embed", json={"inputs": text, "parameters": {"adapter_id": model}},
                                   timeout=60).json()["embeddings"]
            norm = sum(value * value for value in native) ** 0.5
            length = sum(value * value for value in each["embedding"]) ** 0.5
            assert [value / length for value in each["embedding"]] == pytest.approx([value / norm for value in native],
                                                                                    abs=1e-6)


def test_models(server, client):
    calls = [{"key": "list", "url": server.url, "method": "models.list", "body": {}},
             {"key": "one", "url": server.url, "method": "models.retrieve", "body": {"model": ADAPTERS[1]}}]
    results = run_calls(client, calls)
    listed = {model["id"] for model in results["list"]["answers"][0]["data"]}
    assert set(ADAPTERS) < listed
    (one,) = results["one"]["answers"]
    assert one["id"] == ADAPTERS[1] and one["object"] == "model"
    assert one in results["list"]["answers"][0]["data"]
