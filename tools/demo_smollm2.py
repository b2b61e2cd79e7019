"""The demo behind `make demo-smollm2`: a real pretrained model, several chats streamed at once, one batch.

Fails unless the answers are right and the streams shared their steps.
"""

import argparse
import pathlib
import sys

from demo_streams import MAX_TOKENS, ROOT, Round, Stream, report, run_server

QUESTIONS = [
    ("What is the capital of France?", ("paris",)),
    ("What is 2 + 2?", ("4", "four")),
    ("What colour is the sky on a clear day?", ("blue",)),
    ("What is the opposite of hot?", ("cold",)),
    ("Give me three tips for staying healthy.", ("water", "diet", "sleep", "exercise")),
]


def chat(question: str, words: tuple[str, ...]) -> Stream:
    return Stream(
        title=question,
        path="/v1/chat/completions",
        body={
            "model": "",
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": MAX_TOKENS,
            "stream": True,
        },
        text_of=lambda event: "".join(choice.get("delta", {}).get("content") or "" for choice in event["choices"]),
        is_right=lambda answer: any(word in answer.lower() for word in words),
        expected=" or ".join(words),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path, help="folder of the model (tools/fetch_smollm2.py prints it)")
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build/shoal")
    arguments = parser.parse_args()
    chats = [chat(question, words) for question, words in QUESTIONS]
    found = run_server(arguments.binary, arguments.model, [Round(f"{len(chats)} chats at once", chats, fewest_tokens_a_step=2.0)])
    return report(found, "every answer is right, and the chats shared one batch")


if __name__ == "__main__":
    sys.exit(main())
