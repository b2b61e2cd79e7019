"""Generated instructions that teach the base models the format, and to find, copy and compare words.

None of them is a task of tasks.py: those are for the adapters.
"""

import random
import re

from small_models import words


def word_list(rng: random.Random, fewest: int = 3, most: int = 5) -> list[str]:
    return rng.sample(words.ITEMS, rng.randint(fewest, most))


def repeat(rng: random.Random) -> tuple[str, str]:
    items = word_list(rng, 2, 6)
    return f"Repeat these words: {', '.join(items)}", ", ".join(items)


def nth_word(rng: random.Random) -> tuple[str, str]:
    items = word_list(rng)
    index = rng.randrange(-1, min(len(items), len(words.ORDINALS)))
    ordinal = "last" if index < 0 else words.ORDINALS[index]
    return f"What is the {ordinal} word of {', '.join(items)}?", items[index]


def neighbour(rng: random.Random) -> tuple[str, str]:
    items = word_list(rng)
    index = rng.randrange(len(items) - 1)
    if rng.random() < 0.5:
        return f"Which word comes after {items[index]} in {', '.join(items)}?", items[index + 1]
    return f"Which word comes before {items[index + 1]} in {', '.join(items)}?", items[index]


def swap(rng: random.Random) -> tuple[str, str]:
    first, second = rng.sample(words.ITEMS, 2)
    return f"Swap {first} and {second}.", f"{second} and {first}"


def count_words(rng: random.Random) -> tuple[str, str]:
    items = word_list(rng, 2, 6)
    return f"How many words are in {', '.join(items)}?", words.number_word(len(items)).capitalize() + "."


def alphabet(rng: random.Random) -> tuple[str, str]:
    items = rng.sample(words.ITEMS, rng.randint(2, 4))
    return f"Which comes first in the alphabet: {', '.join(items)}?", min(items)


def where(rng: random.Random) -> tuple[str, str]:
    names, cities = rng.sample(words.NAMES, 3), rng.sample(words.CITIES, 3)
    facts = " ".join(f"{name} lives in {city}." for name, city in zip(names, cities, strict=True))
    index = rng.randrange(3)
    if rng.random() < 0.5:
        return f"{facts} Where does {names[index]} live?", f"{names[index]} lives in {cities[index]}."
    return f"{facts} Who lives in {cities[index]}?", f"{names[index]} lives in {cities[index]}."


def age(rng: random.Random) -> tuple[str, str]:
    names = rng.sample(words.NAMES, 2)
    ages = [rng.randint(10, 99) for _ in names]
    facts = " ".join(f"{name} is {years}." for name, years in zip(names, ages, strict=True))
    index = rng.randrange(2)
    return f"{facts} How old is {names[index]}?", f"{names[index]} is {ages[index]}."


def plus_minus(rng: random.Random) -> tuple[str, str]:
    first, second = rng.randint(1, 11), rng.randint(1, 9)
    if rng.random() < 0.5:
        question, value = f"What is {words.number_word(first)} plus {words.number_word(second)}?", first + second
    else:
        total = first + second
        question, value = f"What is {words.number_word(total)} minus {words.number_word(second)}?", first
    return question, words.number_word(value).capitalize() + "."


def larger(rng: random.Random) -> tuple[str, str]:
    first, second = rng.sample(range(21), 2)
    answer = (
        f"{words.number_word(max(first, second)).capitalize()} is larger than {words.number_word(min(first, second))}."
    )
    return f"Which is larger, {words.number_word(first)} or {words.number_word(second)}?", answer


GENERATORS = (repeat, nth_word, neighbour, swap, count_words, alphabet, where, age, plus_minus, larger)


def about_functions(summaries: list[tuple[str, str]], rng: random.Random) -> list[tuple[str, str]]:
    forms = ("What does {} do?", "Explain {}.", "Tell me about {}.")
    return [(rng.choice(forms).format(name), text) for name, text in summaries]


def about_words(paragraphs: list[str], rng: random.Random) -> list[tuple[str, str]]:
    """A sentence of the corpus as the answer to a request for its longest plain word."""
    pairs = []
    for paragraph in paragraphs:
        sentence = re.split(r"(?<=\.)\s", paragraph)[0]
        found = re.findall(r"\b[a-z]{5,}\b", sentence)
        if found and len(sentence) <= 160:
            word = max(found, key=len)
            form = rng.choice(
                ("Write a sentence with the word {}.", "Use {} in a sentence.", "Say something about {}.")
            )
            pairs.append((form.format(word), sentence))
    return pairs


def generate(count: int, paragraphs: list[str], summaries: list[tuple[str, str]], seed: int) -> list[tuple[str, str]]:
    """`count` (question, answer) pairs, a third of them in the corpus's own sentences."""
    rng = random.Random(seed)
    told = about_functions(summaries, rng) + about_words(paragraphs, rng)
    pairs = [rng.choice(told) if told and rng.random() < 0.35 else rng.choice(GENERATORS)(rng) for _ in range(count)]
    return pairs
