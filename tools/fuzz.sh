#!/usr/bin/env bash
# Runs every harness of tests/fuzz for FUZZ_SECONDS (default 60) under libFuzzer, AddressSanitizer and UBSan, JOBS at a
# time, and prints how often each ran; any finding is an error and leaves its input in build-fuzz. The corpus stays in
# build-fuzz/corpus for the next run. Arguments go to CMake; HARNESSES="fuzz_a fuzz_b" chooses.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
jobs=${JOBS:-$(nproc)}
seconds=${FUZZ_SECONDS:-60}

cmake --preset fuzz "$@"
cmake --build --preset fuzz -j "$jobs" --target tests/fuzz/all
python3 tests/fuzz/make_corpus.py build-fuzz/corpus

run_harness() {
  local name=$1 seconds=$2
  "build-fuzz/tests/fuzz/$name" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=20 -verbosity=0 \
    -print_funcs=0 -print_final_stats=1 -artifact_prefix="build-fuzz/$name-" "build-fuzz/corpus/$name" \
    >"build-fuzz/$name.log" 2>&1
}
export -f run_harness
export UBSAN_OPTIONS=print_stacktrace=1
# Each exception would sweep the fake stacks that this needs, which is two thirds of the time of the readers.
export ASAN_OPTIONS=detect_stack_use_after_return=0
symbolizer=$(clang-19 --print-prog-name=llvm-symbolizer)
[ -x "$symbolizer" ] && export ASAN_SYMBOLIZER_PATH=$symbolizer UBSAN_SYMBOLIZER_PATH=$symbolizer

mapfile -t harnesses < <(printf '%s\n' ${HARNESSES:-$(basename -a -s .cc tests/fuzz/fuzz_*.cc)} | while read -r name; do
  if [ -x "build-fuzz/tests/fuzz/$name" ]; then printf '%s\n' "$name"; fi
done)
status=0
printf '%s\n' "${harnesses[@]}" | xargs -P "$jobs" -I NAME bash -c 'run_harness NAME "$0"' "$seconds" || status=1
for name in "${harnesses[@]}"; do
  log=build-fuzz/$name.log
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  # libFuzzer ends with 0 only after the whole time, and a harness that never ran has found nothing either.
  if grep -q '^SUMMARY:\|^==.*ERROR' "$log" || [ "${runs:-0}" -eq 0 ]; then
    status=1
    printf '== %s: FAILED\n' "$name"
    tail -n 60 "$log"
  else
    printf '== %s: %s runs in %s s, %s inputs kept\n' "$name" "$runs" "$seconds" "$(ls "build-fuzz/corpus/$name" | wc -l)"
  fi
done
exit $status
