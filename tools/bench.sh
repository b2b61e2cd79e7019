#!/usr/bin/env bash
# Decode and prefill of the four families on random weights of 1.5 to 1.7 GB (bench/configs); JSON under build/bench.
# Arguments go to `shoal bench`, last word theirs: tools/bench.sh --batch 1,8 --adapters 8 --rank 16
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mkdir -p build/bench
for config in bench/configs/*.json; do
  name=$(basename "$config" .json)
  printf '== %s\n' "$name"
  options=(--config "$config" --load-format dummy --json "build/bench/$name.json")
  if [ $# -eq 0 ]; then options+=(--batch 1,8,32 --prompt-len 128 --new-tokens 32); fi
  build/shoal bench "${options[@]}" "$@"
done
