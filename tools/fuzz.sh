#!/usr/bin/env bash
# Runs each harness of tests/fuzz for FUZZ_SECONDS (default 60) under libFuzzer and AddressSanitizer; the corpus stays in
# build-fuzz/corpus for the next run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cmake -S . -B build-fuzz -G Ninja -DCMAKE_C_COMPILER=clang-19 -DCMAKE_CXX_COMPILER=clang++-19 -DCMAKE_BUILD_TYPE=Release \
  -DSHOAL_FUZZ=ON "$@"
cmake --build build-fuzz -j "${JOBS:-$(nproc)}" --target tests/fuzz/all
for harness in build-fuzz/tests/fuzz/fuzz_*; do
  [ -f "$harness" ] && [ -x "$harness" ] || continue
  name=$(basename "$harness")
  mkdir -p "build-fuzz/corpus/$name"
  printf '== %s\n' "$name"
  "$harness" -max_total_time="${FUZZ_SECONDS:-60}" -rss_limit_mb=2048 -verbosity=0 -print_final_stats=1 \
    -artifact_prefix="build-fuzz/$name-" "build-fuzz/corpus/$name"
done
