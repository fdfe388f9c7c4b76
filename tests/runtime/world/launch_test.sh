#!/usr/bin/env bash
# Jobs whose processes meet through a store: launch_test.sh CASE PROGRAM [MARKS | ON_HOSTS]; PROGRAM is property_job,
# c_api_test, kolo-train or session_job.
set -uo pipefail
case=$1 program=$2 marks=${3:-} limit=60
launch=$(dirname "${BASH_SOURCE[0]}")/../../support/launch
# shellcheck source=tests/support/jobs.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../support/jobs.sh"

case $case in
  programs[2-4])
    ranks=${case#programs}
    job "$launch" -n "$ranks" "$program" "$marks" 1 4
    exits 0
    says "$ranks" '^rank [0-3]: [1-9][0-9]* programs, '
    ;;
  c_api[1-4])
    folder=$(mktemp -d)
    trap 'rm -rf "$out" "$folder"' EXIT
    job "$launch" -n "${case#c_api}" "$program" "$folder"
    exits 0
    says 0 FAILED
    ;;
  missing_rank)
    # Rank 2 dies before it has made its session; the others say so, and end by themselves.
    # shellcheck disable=SC2016
    KOLO_STALL_REPORT_SECONDS=1 KOLO_STALL_ABORT_SECONDS=3 job "$launch" -n 4 bash -c \
      '[[ $RANK != 2 ]] || kill -KILL $$; exec "$@"' bash "$program" --sizes 784,10 --steps 1
    exits 137
    says 3 'making a world from a store: not there after .* s: rank 2; see how these processes have ended, give each process a rank of its own, and use a new store'
    ;;
  no_rank_0)
    # shellcheck disable=SC2016
    KOLO_STALL_REPORT_SECONDS=1 KOLO_STALL_ABORT_SECONDS=3 job "$launch" -n 2 bash -c \
      '[[ $RANK != 0 ]] || kill -KILL $$; exec "$@"' bash "$program" --sizes 784,10 --steps 1
    exits 137
    says 1 'the ranks cannot meet: rank 0 serves no store at 127.0.0.1, ports '
    ;;
  train[12])
    job "$launch" -n "${case#train}" "$program" --sizes 784,10 --steps 20
    exits 0
    says 1 "samples/s over ${case#train} rank"
    ;;
  hosts)
    # Real hosts, on which mpirun starts processes that know torchrun's variables only.
    # shellcheck disable=SC2016
    job "$3" 2,2 bash -c 'exec env -u OMPI_COMM_WORLD_SIZE -u OMPI_COMM_WORLD_RANK RANK="$OMPI_COMM_WORLD_RANK" \
      WORLD_SIZE="$OMPI_COMM_WORLD_SIZE" MASTER_ADDR=10.77.0.10 MASTER_PORT=29500 "$@"' bash "$program" hosts
    ((status != 77)) || { cat "$out"; exit 77; }
    exits 0
    says 4 '^2 of 4 here, sum 2$'
    says 4 'ranks 0 and 2 are on different nodes, .*; start the program with mpirun'
    ;;
  calls)
    # Two sessions after each other, and MPI's library is linked, but not called.
    job "$launch" -n 3 "$program" calls
    exits 0
    says 3 '^sum 3 of 3, mpi calls 0$'
    ;;
  leave)
    job "$launch" -n 3 "$program" leave
    exits 0
    says 3 '^left in [0-9]{1,2} ms$'
    says 0 'wrong'
    ;;
  exit_stack | exit_later)
    # One rank calls exit(5) while its session lives; the others learn at once that it left.
    KOLO_STALL_REPORT_SECONDS=5 KOLO_STALL_ABORT_SECONDS=20 job "$launch" -n 3 "$program" exit "${case#exit_}"
    exits 5
    says 2 '^rank [01] got aborted: group world: rank 2 left without finishing'
    says 0 '^kolo: '
    ;;
  at_exit)
    job "$launch" -n 3 "$program" at_exit later
    exits 0
    says 3 '^sum 3$'
    ;;
  fork)
    job "$launch" -n 2 "$program" fork exit
    exits 0
    says 2 '^child ended with 0, sum 2, late 0$'
    ;;
  killed_rank)
    # Nobody ends the others: they get errors.
    SECONDS=0
    job "$launch" -n 3 "$program" kill
    exits 137
    says 2 "^error\\(aborted\\): group world: rank 2 \\(host [^)]*\\) is gone: its process has ended; see what it printed$"
    ((SECONDS < 10)) || fail "the job took $SECONDS s to end"
    ;;
  *)
    fail 'no such case'
    ;;
esac
echo "passed: $case"
