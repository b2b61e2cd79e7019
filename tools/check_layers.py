"""Checks which room includes which: the table below is the architecture, this script is what keeps it true.

Fails on an include that the table does not allow, on a cycle of includes, on Boost in more than one file, and on code
that asks for a device or an instruction set (`#if`, .cu) outside the rooms that own it.
"""

import argparse
import pathlib
import re
import sys

BELOW_MODELS = {"core", "ops", "weights", "cache", "dist", "lora", "layers"}
MAY_INCLUDE = {
    "core": set(),
    "ops": {"core"},
    "text": {"core"},
    "weights": {"core"},
    "cache": {"core"},
    "dist": {"core"},
    "lora": {"core", "ops", "weights", "dist"},
    "layers": {"core", "ops", "weights", "cache", "dist", "lora"},
    "models": BELOW_MODELS,
    "sampling": {"core", "ops"},
    "engine": BELOW_MODELS | {"models", "sampling"},
    "scheduler": {"core", "text", "cache", "sampling", "engine"},
    "server": {"core", "text", "sampling", "scheduler"},
    "hub": {"core", "lora"},
    "cli": BELOW_MODELS | {"text", "models", "sampling", "engine", "scheduler", "server", "hub"},
}
DEVICE_ROOMS = {"ops", "dist"}
SOURCES = ("*.h", "*.cc", "*.inl", "*.cu", "*.cuh")

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)
DEVICE_CONDITION = re.compile(
    r"^\s*#\s*(?:if|ifdef|ifndef|elif)\b[^\n]*(?:CUDA|NVCC|HIP|__AVX|__SSE|__FMA__|SHOAL_(?:WITH|USE|HAVE))",
    re.MULTILINE,
)
DEVICE_HEADER = re.compile(r"^(?:cuda|cublas|nccl|flashinfer|\w*intrin\.h)")


def read_sources(src: pathlib.Path) -> dict[str, str]:
    files = sorted(path for pattern in SOURCES for path in src.rglob(pattern))
    return {path.relative_to(src).as_posix(): path.read_text(encoding="utf-8") for path in files}


def room_of(name: str) -> str:
    return name.split("/")[0]


def check_includes(sources: dict[str, str]) -> list[str]:
    faults = []
    for name, text in sources.items():
        room = room_of(name)
        if room not in MAY_INCLUDE:
            faults.append(f"{name}: the room '{room}' is not in the table")
            continue
        for quoted, angled in INCLUDE.findall(text):
            other = room_of(quoted) if "/" in quoted else room
            if quoted and other in MAY_INCLUDE and other != room and other not in MAY_INCLUDE[room]:
                faults.append(f"{name}: includes {quoted}, but {room} may not know {other}")
            if quoted and "/" in quoted and other in MAY_INCLUDE and quoted not in sources:
                faults.append(f"{name}: includes {quoted}, which does not exist")
            if angled and DEVICE_HEADER.match(angled) and room not in DEVICE_ROOMS:
                faults.append(
                    f"{name}: includes <{angled}>, a device header, outside {' and '.join(sorted(DEVICE_ROOMS))}"
                )
    return faults


def check_devices(sources: dict[str, str]) -> list[str]:
    faults = []
    for name, text in sources.items():
        if room_of(name) in DEVICE_ROOMS:
            continue
        faults += [f"{name}: {match.group(0).strip()}: asks for a device" for match in DEVICE_CONDITION.finditer(text)]
        if name.endswith((".cu", ".cuh")):
            faults.append(f"{name}: CUDA code stands under ops (NCCL under dist)")
    return faults


def check_boost(sources: dict[str, str]) -> list[str]:
    users = [name for name, text in sources.items() if re.search(r"#\s*include\s*[<\"]boost/", text)]
    return [] if len(users) <= 1 else [f"Boost is included in {len(users)} files, one may: {', '.join(users)}"]


def find_cycle(graph: dict[str, list[str]]) -> list[str]:
    """The files of one cycle, first one again at the end; empty where there is none."""
    done: set[str] = set()
    for start in graph:
        path: list[str] = []
        walk = [(start, iter(graph[start]))] if start not in done else []
        if walk:
            path.append(start)
        while walk:
            node, others = walk[-1]
            other = next((candidate for candidate in others if candidate not in done), None)
            if other is None:
                done.add(node)
                walk.pop()
                path.pop()
            elif other in path:
                return path[path.index(other) :] + [other]
            else:
                path.append(other)
                walk.append((other, iter(graph[other])))
    return []


def check_cycles(sources: dict[str, str]) -> list[str]:
    graph = {}
    for name, text in sources.items():
        beside = name.rsplit("/", 1)[0]
        quoted = [quoted for quoted, _ in INCLUDE.findall(text) if quoted]
        graph[name] = [found for other in quoted for found in (other, f"{beside}/{other}") if found in sources]
    cycle = find_cycle(graph)
    return [f"a cycle of includes: {' -> '.join(cycle)}"] if cycle else []


def check(src: pathlib.Path) -> list[str]:
    sources = read_sources(src)
    return check_includes(sources) + check_devices(sources) + check_boost(sources) + check_cycles(sources)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--src", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent / "src")
    src = parser.parse_args().src
    faults = check(src)
    for fault in faults:
        print(f"src/{fault}", file=sys.stderr)
    print(f"layers: {len(read_sources(src))} files, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
