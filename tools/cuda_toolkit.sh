#!/usr/bin/env bash
# Prints the folder of a CUDA toolkit: the installed one, else the pinned wheels of cuda-requirements.txt, which it puts
# together under ~/.cache/shoal on first use. SHOAL_CUDA_ROOT names another.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
pins=$root/tools/cuda-requirements.txt
cache=${SHOAL_CACHE:-$HOME/.cache/shoal}

if [ -n "${SHOAL_CUDA_ROOT:-}" ]; then
  [ -x "$SHOAL_CUDA_ROOT/bin/nvcc" ] || { printf 'cuda_toolkit: no bin/nvcc in SHOAL_CUDA_ROOT=%s\n' "$SHOAL_CUDA_ROOT" >&2; exit 1; }
  printf '%s\n' "$SHOAL_CUDA_ROOT"
  exit 0
fi
for installed in /usr/local/cuda "$(dirname "$(dirname "$(command -v nvcc || printf /none/bin/nvcc)")")"; do
  if [ -x "$installed/bin/nvcc" ] && [ -e "$installed/include/cublasLt.h" ]; then
    printf '%s\n' "$installed"
    exit 0
  fi
done

toolkit=$cache/cuda-$(sha256sum "$pins" | cut -c1-12)
# The marker is written last: a tree that was interrupted half-way is made anew.
if [ ! -f "$toolkit/complete" ]; then
  printf 'cuda_toolkit: fetching the toolkit into %s\n' "$toolkit" >&2
  rm -rf "$toolkit"
  mkdir -p "$toolkit/wheels"
  "$("$root/tools/setup.sh" --python)" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
    --dest "$toolkit/wheels" --requirement "$pins" >&2
  for wheel in "$toolkit"/wheels/*.whl; do
    "$("$root/tools/setup.sh" --python)" -m zipfile -e "$wheel" "$toolkit/unpacked"
  done
  rm -rf "$toolkit/wheels"
  mv "$toolkit/unpacked/nvidia/cu13"/* "$toolkit/"
  rm -rf "$toolkit/unpacked"
  chmod +x "$toolkit"/bin/* "$toolkit"/nvvm/bin/* 2>/dev/null || true
  ln -sfn lib "$toolkit/lib64"
  # Wheels carry no names for the linker.
  for library in "$toolkit"/lib/lib*.so.*; do
    ln -sf "$(basename "$library")" "${library%%.so.*}.so"
  done
  touch "$toolkit/complete"
fi
printf '%s\n' "$toolkit"
