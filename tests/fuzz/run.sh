#!/usr/bin/env bash
# Runs each fuzz target for some seconds, from the inputs in tests/fuzz/corpus.
#
#   tests/fuzz/run.sh BUILD SECONDS
#
# New inputs are kept in BUILD/corpus for the next run. An input that crashes is kept there, too; its path is
# printed, and the exit code is 1.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$1 seconds=$2
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
failed=0
for target in net weights datum; do
  mkdir -p "$build/corpus/$target" "$build/crashes"
  echo "== fuzz_$target: $seconds s"
  options=(-max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -malloc_limit_mb=0 -print_final_stats=1
           -artifact_prefix="$build/crashes/$target-" -verbosity=0)
  [ ! -f "tests/fuzz/$target.dict" ] || options+=(-dict="tests/fuzz/$target.dict")
  "$build/fuzz_$target" "${options[@]}" "$build/corpus/$target" "tests/fuzz/corpus/$target" || failed=1
done
exit $failed
