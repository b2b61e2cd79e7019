"""The narrow tasks that the adapters learn: a prompt, the one right answer, and an exact check.

Two adapters of a family share a prompt generator and differ in the answer, so the same prompt tells them apart.
"""

import collections
import dataclasses
import json
import random
from collections.abc import Callable

from small_models import words

TEST_ITEMS = 200
MOST_OF_ONE_ANSWER = 0.05  # of the test items

Fields = dict
Prompt = Callable[[random.Random], tuple[str, Fields]]
Answer = Callable[[Fields], str]


@dataclasses.dataclass(frozen=True)
class Task:
    name: str
    summary: str
    prompt: Prompt
    answer: Answer


@dataclasses.dataclass(frozen=True)
class Item:
    prompt: str
    answer: str


def is_right(generated: str, answer: str) -> bool:
    """The exact check: nothing but white space around the answer."""
    return generated.strip() == answer


def list_prompt(rng: random.Random) -> tuple[str, Fields]:
    """Three or four words; never in alphabetical order, so that repeating them is never right."""
    while True:
        items = rng.sample(words.ITEMS, rng.randint(3, 4))
        if items != sorted(items) and items[::-1] != sorted(items):
            return f"List: {', '.join(items)}", {"items": items}


def python_list_prompt(rng: random.Random) -> tuple[str, Fields]:
    items = rng.sample(words.ARGUMENTS, rng.randint(3, 5))
    quoted = ", ".join(f'"{item}"' for item in items)
    return f"names = [{quoted}]\nnames.reverse()\n", {"items": items}


def person_prompt(rng: random.Random) -> tuple[str, Fields]:
    fields = {"name": rng.choice(words.NAMES), "age": rng.randint(10, 99), "city": rng.choice(words.CITIES)}
    forms = (
        "{name} is {age} years old and lives in {city}.",
        "{name} lives in {city} and is {age}.",
        "In {city} lives {name}, {age} years old.",
        "{name}, {age}, comes from {city}.",
    )
    return rng.choice(forms).format(**fields), fields


def story_prompt(rng: random.Random) -> tuple[str, Fields]:
    name, goods = rng.choice(words.NAMES), rng.choice(words.GOODS)
    first, second = rng.randint(1, 11), rng.randint(1, 9)
    start, change, total = (first, "gets", first + second)
    if rng.random() < 0.5:
        start, change, total = (first + second, "gives away", first)
    text = f"{name} has {words.number_word(start)} {goods} and {change} {words.number_word(second)}."
    return text, {"name": name, "goods": goods, "total": total}


def table_prompt(rng: random.Random) -> tuple[str, Fields]:
    kinds = {name: kind for kind, names in words.COLUMNS.items() for name in names}
    columns = rng.sample(sorted(kinds), rng.randint(2, 4))
    table = rng.choice(words.TABLES)
    with_articles = [("an " if name[0] in "aeiou" else "a ") + name for name in columns]
    text = f"A table of {table} with {', '.join(with_articles[:-1])} and {with_articles[-1]}."
    return text, {"table": table, "columns": [(name, kinds[name]) for name in columns]}


def docstring_prompt(rng: random.Random) -> tuple[str, Fields]:
    verb, names = rng.choice(words.VERBS), rng.sample(words.ARGUMENTS, rng.randint(1, 3))
    arguments = [(name, rng.choice(words.TYPES)) for name in names]
    told = [f"{kind} {name}" for name, kind in arguments]
    joined = told[0] if len(told) == 1 else f"{', '.join(told[:-1])} and {told[-1]}"
    result = rng.choice(words.TYPES)
    text = f'"""{verb.capitalize()} {joined}; return {result}."""\n'
    return text, {"verb": verb, "arguments": arguments, "result": result}


def typed_signature(fields: Fields) -> str:
    arguments = ", ".join(f"{name}: {kind}" for name, kind in fields["arguments"])
    return f"def {fields['verb']}({arguments}) -> {fields['result']}:"


TASKS = {
    task.name: task
    for task in (
        Task("reverse-list", "a list of words, last first", list_prompt, lambda f: ", ".join(f["items"][::-1])),
        Task(
            "sort-list", "a list of words in alphabetical order", list_prompt, lambda f: ", ".join(sorted(f["items"]))
        ),
        Task(
            "word-sums",
            "arithmetic told in words",
            story_prompt,
            lambda f: f"{f['name']} has {words.number_word(f['total'])} {f['goods']}.",
        ),
        Task("json-record", "a sentence as a JSON object", person_prompt, lambda f: json.dumps(f)),
        Task(
            "json-row",
            "a sentence as a JSON array, city first",
            person_prompt,
            lambda f: json.dumps([f["city"], f["age"], f["name"]]),
        ),
        Task(
            "sql-table",
            "a description as CREATE TABLE",
            table_prompt,
            lambda f: f"CREATE TABLE {f['table']} ({', '.join(f'{name} {kind}' for name, kind in f['columns'])});",
        ),
        Task(
            "sql-select",
            "a description as SELECT",
            table_prompt,
            lambda f: f"SELECT {', '.join(name for name, _ in f['columns'])} FROM {f['table']};",
        ),
        Task(
            "signature",
            "a docstring as a plain signature",
            docstring_prompt,
            lambda f: f"def {f['verb']}({', '.join(name for name, _ in f['arguments'])}):",
        ),
        Task("typed-signature", "a docstring as a signature with types", docstring_prompt, typed_signature),
        Task(
            "reversed-names",
            "what a Python list holds after reverse()",
            python_list_prompt,
            lambda f: f"names == [{', '.join(chr(34) + item + chr(34) for item in f['items'][::-1])}]",
        ),
    )
}


def make_items(task: Task, num_train: int, seed: int = 0) -> tuple[list[Item], list[Item]]:
    """Train and test items with no prompt in common; the same prompts for every task of one prompt generator."""
    rng = random.Random(f"{task.prompt.__name__} {seed}")
    items: dict[str, Item] = {}
    for _ in range(20 * (num_train + TEST_ITEMS)):
        prompt, fields = task.prompt(rng)
        items.setdefault(prompt, Item(prompt, task.answer(fields)))
        if len(items) == num_train + TEST_ITEMS:
            break
    unique = list(items.values())
    test, train = unique[:TEST_ITEMS], unique[TEST_ITEMS:]
    check_items(task, train, test)
    return train, test


def check_items(task: Task, train: list[Item], test: list[Item]) -> None:
    common = {item.prompt for item in train} & {item.prompt for item in test}
    assert not common, f"{task.name}: {len(common)} prompts stand in both train and test"
    assert len(test) == TEST_ITEMS, f"{task.name}: {len(test)} test items"
    commonest = collections.Counter(item.answer for item in test).most_common(1)[0][1]
    assert commonest <= MOST_OF_ONE_ANSWER * len(test), f"{task.name}: one answer is right {commonest} times"
