"""Calls as JSON lines on stdin, what each gave as JSON lines on stdout, in the order in which they end."""

import json
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

AT_ONCE = 8


def answer_lines(answer: Callable[[dict], dict]) -> None:
    writing = threading.Lock()

    def one(line: str) -> None:
        call = json.loads(line)
        found = json.dumps({"key": call["key"], **answer(call)})
        with writing:
            print(found, flush=True)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for done in [pool.submit(one, line) for line in sys.stdin]:
            done.result()
