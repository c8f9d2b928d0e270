#!/usr/bin/env bash
# Runs each fuzz target: first all inputs in tests/fuzz/corpus, which hold what was found before, then new ones
# that are made of them, for some seconds.
#
#   tests/fuzz/run.sh BUILD SECONDS [TARGET...]
#
# New inputs are kept in BUILD/corpus for the next run. An input that crashes is kept in BUILD/crashes; its path
# is printed, and the exit code is 1.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$1 seconds=$2
shift 2
[ $# -gt 0 ] || set -- net weights datum
# The limit for one allocation is that of memory.cpp, in MB. One thread: a stack then tells all.
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=64 \
       UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
# A small JPEG can say that it has as many pixels as are allowed. It then takes as long as a large one: seconds,
# with sanitizers.
export BAYESCAFFE_MAX_PIXELS=1000000
failed=0
for target in "$@"; do
  corpus=tests/fuzz/corpus/$target
  mkdir -p "$build/corpus/$target" "$build/crashes"
  options=(-timeout=20 -rss_limit_mb=2048 -malloc_limit_mb=0 -print_final_stats=1 -verbosity=0
           -artifact_prefix="$build/crashes/$target-")
  [ ! -f "tests/fuzz/$target.dict" ] || options+=(-dict="tests/fuzz/$target.dict")
  echo "== fuzz_$target: $(ls "$corpus" | wc -l) inputs of the repository, then $seconds s"
  "$build/fuzz_$target" "${options[@]}" -runs=0 "$corpus" > "$build/replay-$target.log" 2>&1 || {
    cat "$build/replay-$target.log"
    failed=1
    continue
  }
  "$build/fuzz_$target" "${options[@]}" -max_total_time="$seconds" "$build/corpus/$target" "$corpus" || failed=1
done
exit $failed
