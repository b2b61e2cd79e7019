"""Every documented field refuses what is not of its type, by its name; the document says which fields there are."""

import json

import pytest
import requests
from conftest import ROOT

DOCUMENT = json.loads((ROOT / "src/server/openapi.json").read_text())
SCHEMAS = DOCUMENT["components"]["schemas"]
VALUES = {"string": "text", "integer": 3, "number": 0.5, "boolean": True, "array": [[None]], "object": {"\u00e4": None}}
MINIMAL = {
    "GenerateRequest": {"inputs": "x", "parameters": {"max_new_tokens": 1}},
    "CompletionRequest": {"model": "", "prompt": "x", "max_tokens": 1},
    "ChatRequest": {"model": "", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
    "EmbedRequest": {"inputs": "x"},
    "EmbeddingsRequest": {"model": "", "input": "x"},
    "TokenizeRequest": {"inputs": "x"},
    "DetokenizeRequest": {"tokens": [1]},
    "LoadAdapterRequest": {"lora_name": "never-loaded", "lora_path": "tenant-1"},
    "UnloadAdapterRequest": {"lora_name": "never-loaded"},
}
ALSO_TAKEN = {"guided_json": {"boolean"}}  # `true` is a JSON schema
UNUSED = {"user"}  # taken from clients that send it, and never looked at


def resolved(schema: dict) -> dict:
    return SCHEMAS[schema["$ref"].rsplit("/", 1)[1]] if "$ref" in schema else schema


def properties(schema: dict) -> dict:
    schema = resolved(schema)
    found = dict(schema.get("properties", {}))
    for part in schema.get("allOf", []):
        found |= properties(part)
    for part in schema.get("anyOf", []):
        found |= properties(part)
    return found


def types(schema: dict) -> set[str]:
    schema = resolved(schema)
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return set().union(*(types(part) for part in schema[choice]))
    if "allOf" in schema:
        return types(schema["allOf"][0])
    if "enum" in schema or "const" in schema:
        return {"string"}
    named = schema.get("type", "object")
    return set(named) if isinstance(named, list) else {named}


def wrong_values(field: str, schema: dict) -> list:
    allowed = types(schema) | ALSO_TAKEN.get(field, set())
    if "number" in allowed:
        allowed |= {"integer"}
    return [value for name, value in VALUES.items() if name not in allowed]


def cases():
    for path, operations in DOCUMENT["paths"].items():
        schema = operations.get("post", {}).get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
        name = schema.get("$ref", "").rsplit("/", 1)[-1]
        if name not in MINIMAL:
            continue
        for field, field_schema in properties(schema).items():
            if field in UNUSED:
                continue
            yield path, name, (), field, field_schema
            if field == "parameters":
                for inner, inner_schema in properties(field_schema).items():
                    yield path, name, ("parameters",), inner, inner_schema


CASES = list(cases())


def test_the_document_has_all_fields():
    assert len(CASES) > 150 and {name for _, name, *_ in CASES} == set(MINIMAL)


@pytest.mark.parametrize(("path", "name", "within", "field", "schema"), CASES,
                         ids=[f"{path}-{'.'.join([*within, field])}" for path, _, within, field, _ in CASES])
def test_wrong_types_are_refused_by_name(server, path, name, within, field, schema):
    for wrong in wrong_values(field, schema):
        body = json.loads(json.dumps(MINIMAL[name]))
        place = body
        for part in within:
            place = place.setdefault(part, {})
        place[field] = wrong
        answer = requests.post(server.url + path, json=body, timeout=60)
        assert answer.status_code == (400 if path.startswith("/v1/") else 422), (wrong, answer.status_code, answer.text)
        assert field in answer.text, (wrong, answer.text)
