#!/usr/bin/env bash
# What only a machine with an NVIDIA GPU can check, in parts of under 8 minutes each. Builds nothing: the binaries come
# from `make build-cuda`, or from a folder that holds them.
#   tools/gpu_check.sh tests|sanitizer|bench|versus [FOLDER [flags of the script that the last two run]]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly limit_s=480
readonly part=${1:-} folder=${2:-build-cuda}

find_binary() {
  local found
  found=$(find "$folder" -maxdepth 4 -name "$1" -type f -perm -u+x | head -n 1)
  [ -n "$found" ] || { echo "gpu_check: no $1 under $folder; make build-cuda makes it" >&2; exit 1; }
  realpath "$found"
}

case $part in
  tests)
    ops=$(find_binary shoal_ops_cuda_test)
    parity=$(find_binary shoal_parity_test)
    timeout "$limit_s" "$ops" --gtest_brief=1
    timeout "$limit_s" "$parity" --gtest_filter='*cuda*'
    timeout "$limit_s" python3 tools/gpu_serve.py --shoal "$(find_binary shoal)"
    ;;
  sanitizer)
    ops=$(find_binary shoal_ops_cuda_test)
    # The kernels that index through tables; those that share memory, each of LoRA's on its smallest case.
    racechecked='CudaRows.*Norm*:CudaLora.SmallestOfEachKind'
    timeout 240 compute-sanitizer --tool memcheck --error-exitcode 1 \
      "$ops" --gtest_brief=1 --gtest_filter='CudaLora*:CudaRows*:CudaAttention*:CudaSampling.R*'
    timeout 240 compute-sanitizer --tool racecheck --error-exitcode 1 \
      "$ops" --gtest_brief=1 --gtest_filter="$racechecked"
    ;;
  bench | versus)
    shoal=$(find_binary shoal)
    script=$([ "$part" = bench ] && echo gpu_tables || echo gpu_versus)
    timeout "$limit_s" python3 "tools/$script.py" --shoal "$shoal" "${@:3}"
    ;;
  *)
    sed -n '2,4s/^# *//p' "$0" >&2
    exit 2
    ;;
esac
