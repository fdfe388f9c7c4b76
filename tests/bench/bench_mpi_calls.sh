#!/usr/bin/env bash
# kolo-bench counts the calls of every function of MPI that it uses: none goes straight to the library.
#
# usage: bench_mpi_calls.sh KOLO_BENCH
set -euo pipefail
uncounted=$(nm --dynamic --undefined-only "$1" | grep -E ' MPI_[A-Z]' || true)
if [[ -n $uncounted ]]; then
  printf 'add to bench/kolo_bench/peers/mpi_calls.cc:\n%s\n' "$uncounted"
  exit 1
fi
nm --dynamic --undefined-only "$1" | grep ' PMPI_Test$' >/dev/null
