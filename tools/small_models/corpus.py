"""Collects what the base models read: prose and Python source of packages that every torch environment has.

Nothing of it enters the repository. Prose comes from docstrings, comments and the language reference that pydoc
carries, source from the standard library.
"""

import ast
import concurrent.futures
import dataclasses
import importlib.metadata
import importlib.util
import json
import pathlib
import platform
import re
import sysconfig

PACKAGES = {  # distribution and its licence; the standard library is taken apart from these
    "torch": "BSD-3-Clause",
    "numpy": "BSD-3-Clause",
    "sympy": "BSD-3-Clause",
    "networkx": "BSD-3-Clause",
    "transformers": "Apache-2.0",
}
SKIPPED_FOLDERS = {"site-packages", "test", "tests", "testing", "idle_test", "turtledemo", "encodings", "lib2to3"}
MIN_PARAGRAPH, MAX_PARAGRAPH = 40, 1200
MIN_SOURCE, MAX_SOURCE = 400, 200_000
FEWEST_LETTERS = 0.84  # of a paragraph are letters and spaces
NOT_PROSE = re.compile(r">>>|^\.\.|^:|^\s*[-*+] |={3}|-{3}|\|\s|::|http|[{}<>\\]|\w\(\w*=|^\s*[A-Z]\w*:$", re.MULTILINE)
ROLE = re.compile(r":[\w:]+:(?=`)")  # of reStructuredText, as in :class:`Path`
WORKERS = 8


@dataclasses.dataclass
class Corpus:
    paragraphs: list[str]
    summaries: list[tuple[str, str]]  # a function's name and the first sentence of its docstring
    sources: list[str]
    origins: list[str]  # "torch 2.11.0 (BSD-3-Clause)"

    def save(self, path: pathlib.Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dataclasses.asdict(self), ensure_ascii=False))

    @classmethod
    def load(cls, path: pathlib.Path) -> "Corpus":
        corpus = cls(**json.loads(path.read_text()))
        corpus.summaries = [tuple(pair) for pair in corpus.summaries]
        return corpus


def python_files(root: pathlib.Path) -> list[pathlib.Path]:
    files = [path for path in root.rglob("*.py") if not SKIPPED_FOLDERS & set(path.relative_to(root).parts)]
    return sorted(files)


def clean_paragraph(text: str) -> str | None:
    """One line of prose, or nothing if the paragraph is code, a table, a field list or a heading."""
    text = ROLE.sub("", text).replace("`", "")
    if NOT_PROSE.search(text):
        return None
    line = " ".join(text.split())
    if not MIN_PARAGRAPH <= len(line) <= MAX_PARAGRAPH or not line.isascii() or not line[0].isupper():
        return None
    letters = sum(letter.isalpha() or letter == " " for letter in line)
    return line if line[-1] in ".!?" and letters >= FEWEST_LETTERS * len(line) else None


def docstrings(tree: ast.Module) -> list[tuple[str, str]]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    found = [(getattr(node, "name", ""), ast.get_docstring(node)) for node in nodes]
    return [(name, text) for name, text in found if text]


def comments(source: str) -> list[str]:
    """Comments of several lines, each as one text."""
    blocks = re.findall(r"(?:^[ \t]*# .*\n){2,}", source, re.MULTILINE)
    return [re.sub(r"^[ \t]*# ", "", block, flags=re.MULTILINE) for block in blocks]


def read_module(path: pathlib.Path) -> tuple[str, list[str], list[tuple[str, str]]]:
    """Source, paragraphs and summaries of one file."""
    try:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return "", [], []
    paragraphs = [part for part in map(clean_paragraph, comments(source)) if part]
    summaries = []
    for name, text in docstrings(tree):
        cleaned = [clean_paragraph(part) for part in re.split(r"\n\s*\n", text)]
        paragraphs += [part for part in cleaned if part]
        first = re.split(r"(?<=\.)\s", " ".join(text.replace("`", "").split("\n\n")[0].split()))[0]
        is_plain = 20 <= len(first) <= 140 and first.isascii() and first[0].isupper() and first[-1] == "."
        if name and not name.startswith("_") and is_plain and not NOT_PROSE.search(first):
            summaries.append((name, first))
    return source, paragraphs, summaries


def topics() -> list[str]:
    """The language reference, as `help()` shows it."""
    from pydoc_data.topics import topics as texts

    cleaned = [clean_paragraph(part) for text in texts.values() for part in re.split(r"\n\s*\n", text)]
    return [part for part in cleaned if part]


def collect() -> Corpus:
    standard = pathlib.Path(sysconfig.get_paths()["stdlib"])
    files = python_files(standard)
    origins = [f"the standard library of Python {platform.python_version()} (PSF-2.0)"]
    num_standard = len(files)
    for package, licence in PACKAGES.items():
        spec = importlib.util.find_spec(package)
        files += python_files(pathlib.Path(spec.submodule_search_locations[0]))
        origins.append(f"{package} {importlib.metadata.version(package).split('+')[0]} ({licence})")
    with concurrent.futures.ProcessPoolExecutor(WORKERS) as pool:
        modules = list(pool.map(read_module, files, chunksize=32))
    sources = [module[0] for module in modules[:num_standard]]
    return Corpus(
        paragraphs=list(dict.fromkeys(topics() + [part for module in modules for part in module[1]])),
        summaries=list(dict.fromkeys(pair for module in modules for pair in module[2])),
        sources=[source for source in sources if MIN_SOURCE <= len(source) <= MAX_SOURCE and source.isascii()],
        origins=origins,
    )
