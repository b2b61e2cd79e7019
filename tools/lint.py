"""Runs clang-tidy on every source file that changed, in itself or in what it includes, since it last passed.

Files that pass are remembered by the hash of all they read, so a warm run looks at the change alone. A run stops
starting files when its time is over and says which remain; only findings fail it.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CLANG_TIDY = "clang-tidy-19"


def our_dependencies(build_dir: pathlib.Path) -> dict[str, list[str]]:
    """For each source file, the files of this tree that it read when it was last built, itself first."""
    listed = subprocess.run(["ninja", "-C", str(build_dir), "-t", "deps"], check=True, capture_output=True, text=True)
    dependencies = {}
    for block in listed.stdout.split("\n\n"):
        paths = [
            str((build_dir / line.strip()).resolve()) for line in block.splitlines()[1:] if line.startswith("    ")
        ]
        ours = [path for path in paths if path.startswith(str(ROOT / "src")) or path.startswith(str(ROOT / "rust"))]
        if ours:
            dependencies[ours[0]] = ours
    return dependencies


def read_hash(paths: list[str], extra: str) -> str:
    digest = hashlib.sha256(extra.encode())
    for path in sorted(set(paths)):
        digest.update(os.path.relpath(path, ROOT).encode() + b"\0")
        digest.update(pathlib.Path(path).read_bytes() if os.path.exists(path) else b"gone")
    return digest.hexdigest()


def work_list(build_dir: pathlib.Path, cache: pathlib.Path) -> tuple[list[tuple[str, pathlib.Path]], int]:
    """The files to look at, each with the marker that says it passed, and how many have passed before."""
    version = subprocess.run([CLANG_TIDY, "--version"], check=True, capture_output=True, text=True).stdout
    configs = [ROOT / ".clang-tidy", *sorted((ROOT / "src").rglob(".clang-tidy"))]
    rules = "".join(config.read_text(encoding="utf-8") for config in configs)
    dependencies = our_dependencies(build_dir)
    todo, passed = [], 0
    for entry in json.loads((build_dir / "compile_commands.json").read_text(encoding="utf-8")):
        source = entry["file"]
        if not source.startswith(str(ROOT / "src")) or source.endswith("_test.cc"):
            continue
        # No dependency list yet (never built): the file alone, so that a change of a header can go unseen only then.
        command = re.sub(re.escape(str(ROOT)), "", entry["command"])
        key = read_hash(dependencies.get(source, [source]), version + rules + command)
        marker = cache / key
        if marker.exists():
            passed += 1
        else:
            todo.append((source, marker))
    return todo, passed


def lint_file(source: str, build_dir: pathlib.Path) -> tuple[bool, str]:
    # g++'s own warning flags are unknown to clang; its warnings are not what this run is about.
    ran = subprocess.run(
        [CLANG_TIDY, "-p", str(build_dir), "--quiet", "--extra-arg=-Wno-everything", source],
        check=False,
        capture_output=True,
        text=True,
    )
    return ran.returncode == 0, ran.stdout + ran.stderr


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build-dir", type=pathlib.Path, required=True)
    parser.add_argument("--budget-s", type=float, default=1e9, help="start no file after this many seconds")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="", help="look only at paths that contain this")
    arguments = parser.parse_args()
    cache = pathlib.Path(os.environ.get("SHOAL_CACHE") or pathlib.Path.home() / ".cache/shoal") / "lint"
    cache.mkdir(parents=True, exist_ok=True)

    build_dir = arguments.build_dir.resolve()
    todo, passed = work_list(build_dir, cache)
    todo = [item for item in todo if arguments.only in item[0]]
    end = time.monotonic() + arguments.budget_s
    found, left = 0, []

    def look(item: tuple[str, pathlib.Path]) -> None:
        nonlocal found
        source, marker = item
        if time.monotonic() > end:
            left.append(source)
            return
        clean, output = lint_file(source, build_dir)
        if clean:
            marker.touch()
        else:
            found += 1
            print(f"{os.path.relpath(source, ROOT)}:\n{output}", flush=True)

    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(look, todo))
    for source in left:
        print(f"lint: out of time before {os.path.relpath(source, ROOT)}")
    looked_at = len(todo) - len(left)
    print(f"lint: {passed} passed before, {looked_at} looked at, {found} with findings, {len(left)} not reached")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
