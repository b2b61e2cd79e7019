"""The openai client as a process. A call: {"key", "url", "method", "body", "extra", "options"}; `options` go to it."""

import functools
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import openai  # noqa: E402
from lines import answer_lines  # noqa: E402


@functools.lru_cache
def client_of(url: str, options: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=url + "/v1", **{"api_key": "none", "max_retries": 0, "timeout": 60, **json.loads(options)})


def checked(answer) -> dict:
    """What the object holds. The client builds it without a look at the types, so they are looked at here."""
    held = answer.model_dump(mode="json", exclude_unset=True)
    typed = held
    if held.get("object") == "text_completion":
        # Its one type for chunks and whole answers has no null here, which OpenAI sends in each chunk but the last.
        typed = held | {"choices": [choice | {"finish_reason": choice["finish_reason"] or "stop"}
                                    for choice in held["choices"]]}
    type(answer).model_validate(typed, strict=True)
    return held


def answer(call: dict) -> dict:
    client = client_of(call["url"], json.dumps(call.get("options", {})))
    body = call["body"] | ({"extra_body": call["extra"]} if call.get("extra") else {})
    held: list[dict] = []
    try:
        if call["method"] == "chat.completions.stream":
            with client.chat.completions.stream(**body) as stream:
                return {"answers": [stream.get_final_completion().model_dump(mode="json", exclude_unset=True)]}
        made = functools.reduce(getattr, call["method"].split("."), client)(**body)
        for each in made if body.get("stream") else [made]:
            held.append(checked(each))
    except Exception as error:  # noqa: BLE001: whatever the client lets through
        fields = {name: getattr(error, name, None) for name in ("code", "param", "type")}
        return {"answers": held, "error": {"class": type(error).__name__, "status": getattr(error, "status_code", None),
                                           "message": str(error), **fields}}
    return {"answers": held}


if __name__ == "__main__":
    answer_lines(answer)
