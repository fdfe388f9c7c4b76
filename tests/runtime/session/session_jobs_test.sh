#!/usr/bin/env bash
# Whole jobs with sessions in them, as a launcher sees them: session_jobs_test.sh CASE PROGRAM MPIEXEC
set -uo pipefail
case=$1 program=$2 mpiexec=$3 limit=50
# shellcheck source=tests/support/jobs.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../support/jobs.sh"
shared_before=$(ls -A /dev/shm)

# Open MPI's own mpirun sometimes crashes while it ends a job that was aborted: then once more.
mpirun() {
  for attempt in 1 2 3; do
    job "$mpiexec" --oversubscribe --timeout 40 "$@"
    ((status == 139)) && grep -q PMIx_server_finalize "$out" || break
    echo "mpirun crashed (attempt $attempt)"
  done
}
mentions() { grep -qE "$1" "$out" || fail "no line with: $1"; }

case $case in
  host_multiple | host_serialized)
    mpirun -np 2 "$program" host "${case#host_}"
    exits 0
    says 2 '^host sum 2$'
    says 2 '^host after 2$'
    ;;
  host_funneled | host_single)
    level=${case#host_}
    mpirun -np 2 "$program" host "$level"
    exits 3
    mentions "^error\(invalid_argument\): MPI was initialised for one thread \(MPI_THREAD_${level^^}\), and a session calls it from several; initialise it with MPI_Init_thread\(…, MPI_THREAD_MULTIPLE, …\)$"
    ;;
  launcher_of_another_mpi)
    job env PMI_SIZE=2 "$program" sum
    exits 3
    says 1 '^error\(backend\): the launcher started 2 ranks \(PMI_SIZE\) but MPI sees one \(it belongs to another MPI than the one kolo was built with\); start the program with that MPI.s own mpirun$'
    ;;
  launcher_of_words)
    job env PMI_SIZE=two "$program" sum
    exits 3
    says 1 "^error\(invalid_argument\): PMI_SIZE is 'two'; a launcher sets it to a number: start the program with one, or unset it$"
    ;;
  no_launcher)
    job "$program" sum
    exits 0
    says 1 '^sum 1 of 1$'
    ;;
  sessions_in_a_row)
    mpirun -np 3 "$program" again
    exits 0
    says 30 '^again 3$'
    says 0 'slowly'
    ;;
  fork_exit | fork_return | fork_function)
    mpirun -np 2 "$program" fork "${case#fork_}"
    exits 0
    says 2 "^child: this process was made by fork\(\), and its parent's session is none of its own; "
    says 2 "^another: this process was made by fork\(\), and its parent's session is none of its own; "
    says 2 '^child ended with 0, sum 2, late 0$'
    [[ $case != fork_function ]] || says 2 '^another function$'
    ;;
  idle)
    mpirun -np 3 "$program" idle 3
    exits 0
    says 3 '^idle rank [0-2]: cpu low .*, mpi calls 0$'
    says 0 'woken late'
    ;;
  idle_nodes)
    export KOLO_FAKE_NODES=2,1,1
    mpirun -np 4 "$program" idle 3
    exits 0
    says 4 '^idle rank [0-3]: cpu low .*, mpi calls 1?[0-9]$'  # MPI may keep something that others need
    says 0 'woken late'
    ;;
  frozen_rank)
    export KOLO_STALL_REPORT_SECONDS=0.5 KOLO_STALL_ABORT_SECONDS=4
    mpirun -np 3 "$program" freeze
    exits 72
    victim=$(sed -n 's/^victim //p' "$out")
    for rank in 0 1; do
      mentions "^kolo: rank $rank: all_reduce 'after' in group world has waited for [0-9.]+ s: submitted by ranks 0, 1; not known of rank 2 \(host $(hostname), pid $victim, silent for [0-9.]+ s: stopped or dead; last completed 'before'\)"
    done
    mentions "; ending the job \(KOLO_STALL_ABORT_SECONDS=4\)$"
    for ((tenths = 0; tenths < 50; ++tenths)); do
      [[ $(ps -o stat= -p "$victim") =~ ^Z?$ ]] && break  # gone, or waiting for init to notice
      sleep 0.1
    done
    ((tenths < 50)) || fail "process $victim is still there"
    ;;
  frozen_after_step)
    # The peer's last word is that it waits for 'x', of the step before; or that it waits for nothing, if its watchdog's
    # beat comes just before it stops.
    export KOLO_STALL_REPORT_SECONDS=0.5 KOLO_STALL_ABORT_SECONDS=4
    mpirun -np 3 "$program" freeze_after step
    exits 72
    mentions "^kolo: rank 0: all_reduce 'x' in group world has waited for [0-9.]+ s: submitted by ranks 0, 1; not (known of|submitted by) rank 2 \(.*, silent for [0-9.]+ s: stopped or dead(; last completed 'x')?\)"
    # From rank 0's first line on: it submits the first 'x' last, and others may report just then that it is not agreed
    # yet. Until the job ends: then rank 2 goes on for a moment.
    sed -i -n '/^kolo: rank 0:/,/ending the job/p' "$out"
    says 0 '^kolo: rank [01]: .*submitted by ranks 0-2; no'
    ;;
  frozen_after_submission)
    export KOLO_STALL_REPORT_SECONDS=0.5 KOLO_STALL_ABORT_SECONDS=4
    mpirun -np 3 "$program" freeze_after submitted
    exits 72
    mentions "^kolo: rank 1: all_reduce 'x' in group world has waited for [0-9.]+ s: submitted by ranks 1, 2; not submitted by rank 0 \(host [^)]*\); no word from rank 2 \(.*, silent for [0-9.]+ s: stopped or dead\)"
    says 0 '^kolo: rank [01]: .*not (submitted by|known of) rank 2'
    ;;
  timeout_of_a_frozen_rank)
    # It comes back after 4 s, when the others have given up what they waited for, and all go on.
    mpirun -np 3 "$program" frozen_for 2,4
    exits 0
    text="stalled: all_reduce 'late' in group world: no answer from rank 2 within 0.5 s \(rank [01] has waited that long; submitted by ranks 0, 1\); see what they do"
    says 3 "^rank [0-2]: $text$"
    says 3 '^rank [0-2]: after is 3$'
    ;;
  timeout_of_a_frozen_root)
    # It comes back after 9 s, when the others have given up the group.
    mpirun -np 3 "$program" frozen_for 0,9
    exits 0
    text="stalled: group world: what was not complete within its time-out was not decided on for 6 s more; rank 0, which would ask who is missing, does not answer; see what it does"
    says 6 "^rank [0-2]: $text$"
    ;;
  failed_beside_a_frozen_rank)
    # Both programs end with an error; MPI would wait for the third for ever.
    mpirun -np 3 "$program" fails_beside_frozen
    exits 3
    sed -i '/^Primary job/q' "$out"  # then rank 2 goes on for a moment
    says 2 "^error\(stalled\): all_reduce 'after' in group world: no answer from rank 2 within 0.5 s "
    mentions '^kolo: process [0-9]+ ends with code 3, though other ranks have not come to their end for 20 s; the launcher may end them$'
    ;;
  late_rank | late_rank_host)
    # A rank makes its session late, then never; the others wait in MPI_Init() or, where the host has called that, behind it.
    export KOLO_STALL_REPORT_SECONDS=1 KOLO_STALL_ABORT_SECONDS=20
    mpirun -np 3 "$program" "${case/_rank/}" 3
    exits 0
    victim=$(sed -n 's/^late //p' "$out")
    for rank in 0 1; do
      mentions "^kolo: rank $rank: making the session has waited for [0-9.]+ s: not there yet: rank 2 \(host $(hostname), pid $victim\)$"
    done
    says 0 '^kolo: rank 2'
    says 3 '^sum 3$'
    export KOLO_STALL_ABORT_SECONDS=2
    mpirun -np 3 "$program" "${case/_rank/}" 100
    exits 72
    mentions '^kolo: rank [01]: making the session has waited .*; ending the job \(KOLO_STALL_ABORT_SECONDS=2\)$'
    ;;
  killed_rank)
    SECONDS=0
    mpirun -np 3 "$program" kill
    mentions '^victim [0-9]+$'
    ((status != 0)) || fail "an exit code other than 0 expected"
    ((SECONDS < 15)) || fail "the job took $SECONDS s to end"
    ;;
  killed_rank_is_named | killed_rank_in_order)
    # The launcher does nothing about it. Both programs end with the error; MPI would wait for the third for ever.
    mpirun --enable-recovery -np 3 "$program" kill "${case#killed_rank_}"
    victim=$(sed -n 's/^victim //p' "$out")
    group='group world'
    [[ $case != killed_rank_in_order ]] || group='group of ranks 0-2'
    says 2 "^error\(aborted\): $group: rank 2 \(host $(hostname), pid $victim\) is gone: its process has ended; see what it printed$"
    says 0 '^kolo: rank '
    ;;
  killed_rank_is_outlived)
    # Rank 0 does not wait for the others for ever, though its program ends well. Now and then Open MPI has forgotten the
    # dead rank, or fails at once, and lets rank 0 go.
    mpirun --enable-recovery -np 3 "$program" outlives
    says 2 '^rank [01] goes on: aborted$'
    mentions '^(kolo: process [0-9]+ ends with code 0, though other ranks have not come to their end for 20 s; the launcher may end them|rank 0 was let go after 1?[0-9] s)$'
    ;;
  many_groups | many_groups_in_order)
    mpirun -np 4 "$program" many_groups "${case#many_groups_}"
    exits 0
    says 4 '^5000 groups, [1-9][0-9]{3,4} kB$'
    says 0 'wrong'
    ;;
  any_set_leaves)
    mpirun -np 3 "$program" leave
    exits 0
    says 3 '^left in [0-9]{1,2} ms$'
    says 0 'wrong'
    ;;
  part_of_a_job)
    # Its watchdog ends the ranks of the session; what becomes of the others is the launcher's business.
    KOLO_STALL_REPORT_SECONDS=0.5 KOLO_STALL_ABORT_SECONDS=1 mpirun -np 3 "$program" part
    exits 72
    mentions '^aborts 2 ranks$'
    says 0 '^aborts 3 ranks$'
    ;;
  stopped_rank)
    # Its watchdog does not count the time during which its process was stopped.
    KOLO_STALL_REPORT_SECONDS=1 KOLO_STALL_ABORT_SECONDS=4 mpirun -np 2 "$program" stopped_for 8
    exits 0
    says 2 '^sum 2$'
    ;;
  exit_stack | exit_static | exit_later | exit_waiting | exit_function)
    # One rank calls exit(5) while its session lives; the others wait for it, and learn at once that it left.
    export KOLO_STALL_REPORT_SECONDS=5 KOLO_STALL_ABORT_SECONDS=20
    left='aborted: group world: rank 2 left without finishing'
    [[ $case != exit_static && $case != exit_function ]] || left="closed: all_reduce 'after' in group world: rank 2 closed the session"  # destroyed in order
    for nodes in 3 1,1,1; do
      mpirun -np 3 -x KOLO_FAKE_NODES=$nodes "$program" exit "${case#exit_}"
      exits 5
      says 2 "^rank [01] got $left"
      says 0 '^kolo: '
    done
    ;;
  at_exit_static | at_exit_later)
    # Every rank returns from main with a session that nobody has closed.
    for nodes in 3 1,1,1; do
      mpirun -np 3 -x KOLO_FAKE_NODES=$nodes "$program" at_exit "${case#at_exit_}"
      exits 0
      says 3 '^sum 3$'
    done
    ;;
  different_settings)
    mpirun -np 1 -x KOLO_FUSION_BYTES=1MB "$program" sum : -np 2 -x KOLO_FUSION_BYTES=64MB "$program" sum
    exits 3
    mentions '^error\(mismatch\): ranks have different values of KOLO_FUSION_BYTES \(rank 0: 1048576; ranks 1, 2: 67108864\); export the same value to every rank, with mpirun -x KOLO_FUSION_BYTES$'
    ;;
  different_nodes)
    mpirun -np 1 -x KOLO_FAKE_NODES=1,1 "$program" sum : -np 1 "$program" sum
    exits 3
    mentions '^error\(mismatch\): ranks have different values of KOLO_FAKE_NODES \(rank 1: none; rank 0: 1,1\); export the same value to every rank, with mpirun -x KOLO_FAKE_NODES$'
    ;;
  different_backends)
    mpirun -np 1 -x KOLO_BACKEND=local "$program" sum : -np 1 "$program" sum
    exits 3
    mentions '^error\(mismatch\): ranks have different values of KOLO_BACKEND \(rank 1: auto; rank 0: local\); export the same value to every rank, with mpirun -x KOLO_BACKEND$'
    ;;
  local_backend)
    mpirun -np 2 -x KOLO_BACKEND=local "$program" sum
    exits 3
    says 2 "^error\(invalid_argument\): KOLO_BACKEND is 'local', which cannot serve this world \(it serves ranks of one process, and these are processes\); set it to auto, shm or mpi$"
    ;;
  wrong_fake_nodes)
    mpirun -np 3 -x KOLO_FAKE_NODES=2,2 "$program" sum
    exits 3
    says 3 "^error\(invalid_argument\): KOLO_FAKE_NODES is '2,2' \(it adds up to 4 ranks, there are 3\); give the number of ranks on each node, such as 2,2$"
    ;;
  garbage_setting)
    mpirun -np 1 -x KOLO_SPIN_US=fast "$program" sum : -np 1 "$program" sum
    exits 3
    says 1 "^error\(invalid_argument\): KOLO_SPIN_US is 'fast'; it takes a whole number of microseconds, 0 or more$"
    ;;
  *)
    fail "no such case"
    ;;
esac
new=$(comm -13 <(sort <<<"$shared_before") <(ls -A /dev/shm | sort) | grep -i kolo)
[[ -z $new ]] || fail "left in /dev/shm: $new"
echo "passed: $case"
