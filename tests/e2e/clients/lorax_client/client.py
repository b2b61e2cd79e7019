"""lorax-client as a process. A call: {"key", "url", "method", "body", "options"}; `options` go to its Client."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import lorax  # noqa: E402
import requests  # noqa: E402
from lines import answer_lines  # noqa: E402


def answer(call: dict) -> dict:
    options = {"timeout": 60, "max_session_retries": 0, **call.get("options", {})}
    if options.pop("no_retries", False):  # of the session that the client makes: a minute of them
        options["session"] = requests.Session()
    client = lorax.Client(call["url"], **options)
    held: list = []
    try:
        made = getattr(client, call["method"])(**call["body"])
        for each in made if call["method"] == "generate_stream" else [made]:
            held.append(each.model_dump(mode="json"))  # of pydantic's types, so it was checked
    except Exception as error:  # noqa: BLE001: whatever the client lets through
        return {"answers": held, "error": {"class": type(error).__name__, "message": str(error)}}
    return {"answers": held}


if __name__ == "__main__":
    answer_lines(answer)
