"""The clients that users have, each as a process in an environment of its own (tools/setup.sh makes them)."""

import json
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "e2e" / "clients"
OPENAI = ["openai_python", "openai_node"]


@cache
def environment(client: str) -> Path:
    """The folder with the client's interpreter in bin/."""
    folder = Path(subprocess.check_output([ROOT / "tools" / "setup.sh", "--client", client], text=True).strip())
    assert (folder / "complete").exists(), f"{folder} is not there or not whole: tools/setup.sh makes it"
    return folder


def command(client: str) -> list[str]:
    if client == "openai_node":
        return [str(environment(client) / "bin" / "node"), str(environment(client) / "client.js")]
    return [str(environment(client) / "bin" / "python"), str(FOLDER / client / "client.py")]


def run_calls(client: str, calls: list[dict], seconds: float = 300) -> dict[str, dict]:
    """All calls by one process: {"answers": [...], "error": {...} or absent} of each, by its key."""
    lines = "".join(json.dumps(call) + "\n" for call in calls)
    done = subprocess.run(command(client), input=lines, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stderr
    results = {result.pop("key"): result for result in map(json.loads, done.stdout.splitlines())}
    assert results.keys() == {call["key"] for call in calls}
    return results
