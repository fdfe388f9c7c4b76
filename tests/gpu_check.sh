#!/usr/bin/env bash
# Runs on a machine with a GPU what tests/gpu_pack.sh has put into an archive, and prints a table of it that grows line by line. The
# machine needs a driver, NCCL and cuBLAS; no network, MPI or compiler. Nothing is changed outside of its folders, nothing deleted.
set -uo pipefail

limit=${GPU_CHECK_SECONDS:-470}  # for everything

usage() {
  cat <<EOF
usage: tests/gpu_check.sh [-k STEPS] [ARCHIVE | --build PACKAGES]

ARCHIVE   made by tests/gpu_pack.sh
PACKAGES  folder with what tests/gather_packages.sh downloaded: kolo is built from these sources on this machine, which takes CUDA's
          Toolkit, NCCL's header, CMake and a compiler
STEPS     a regular expression: only the steps whose names match are run

Ends with 0 if nothing failed, 1 if something did, and takes at most $limit s. Without a GPU it says so and skips everything.
The table and all that the steps print are in the folder \$OUT (default: a new one that is named) in the end. GPU_CHECK_SECONDS sets another limit.
EOF
}

fail() {
  printf 'gpu_check: %s\n' "$*" >&2
  exit 1
}

wanted=.
packages='' archive=''
while (($# > 0)); do
  case $1 in
    -h | --help) usage; exit 0 ;;
    -k) wanted=${2:?} && shift ;;
    --build) packages=$(realpath "${2:?}") && shift ;;
    -*) usage >&2; exit 2 ;;
    *) archive=$(realpath "$1") ;;
  esac
  shift
done

PATH=$PATH:/usr/local/cuda/bin:/usr/local/nvidia/bin  # the second: of the driver, in containers
gpus=$(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null | grep -c '^[0-9]') || gpus=0
if ((gpus == 0)); then
  printf 'skipped: this machine has no GPU (nvidia-smi names none)\n'
  exit 0
fi
[[ -n $packages$archive ]] || { usage >&2; exit 2; }

source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/kolo-gpu-XXXXXX") || exit 1
out=${OUT:-$work}
root=$work/kolo-gpu
build=$work/build
mps=false
trap stop_mps EXIT

rows=()
failed=0
note_row() {  # STATE NAME SECONDS FIGURES
  rows+=("$(printf '%-7s  %-34s  %5s s  %s' "$@")")
  printf '%s\n' "${rows[-1]}" | tee -a "$out/table"
  if [[ $1 == failed ]]; then failed=1; fi
}

# The stacks of all threads of a session's processes: cuda-gdb's, which is the only debugger that some machines have.
print_stacks() {
  local pid
  command -v cuda-gdb >/dev/null || return
  for pid in $(pgrep -s "$1"); do  # all at once: it takes seconds for each
    [[ $(readlink "/proc/$pid/exe") == "$root"/* ]] || continue
    {
      printf -- '--- threads of %s (%s)\n' "$pid" "$(tr '\0' ' ' <"/proc/$pid/cmdline")"
      timeout 10 cuda-gdb -batch -p "$pid" -ex 'thread apply all bt' 2>&1 | grep -E '^(Thread|#)' | cut -c 1-200
    } >"$work/stack.$pid" &
  done
  for pid in $(jobs -p); do
    [[ $pid == "$1" ]] || wait "$pid"
  done
  cat "$work"/stack.* 2>/dev/null
  rm -f "$work"/stack.*
}

# within SECONDS COMMAND...: in a session of its own, which is killed when the time is over; then 124.
within() {
  local seconds=$1 end pid
  shift
  setsid bash -c '"$@"' within "$@" &
  pid=$!
  end=$((SECONDS + seconds))
  while kill -0 $pid 2>/dev/null; do
    if ((SECONDS >= end)); then
      print_stacks $pid >"$work/stacks"
      pkill -KILL -s $pid
      wait $pid
      return 124
    fi
    sleep 0.1
  done
  wait $pid
}

# step NAME SECONDS FIGURES COMMAND...: one row of the table. FIGURES is a function that prints what is worth it of the output.
step() {
  local name=$1 seconds=$2 figures=$3 log begin=$SECONDS rc=0 left=$((limit - SECONDS)) state=passed text
  shift 3
  [[ $name =~ $wanted ]] || return 0
  log=$out/running  # so that it is there if all this is ended in the middle
  if ((left < 1)); then
    note_row skipped "$name" 0 "no time is left of the $limit s"
    return 1
  fi
  seconds=$((seconds < left ? seconds : left))
  : >"$work/stacks"
  within $seconds "$@" >"$log" 2>&1 </dev/null || rc=$?
  sed -i 's/\r$//' "$log"  # of mpirun's terminal
  { printf '\n===== %s: %s\n' "$name" "$*"; cat "$log" "$work/stacks"; } >>"$out/log"
  text=$("$figures" "$log")
  if ((rc == 124)); then
    state=failed text="took longer than $seconds s"
  elif [[ $text == 'skipped: refused'* ]]; then
    state=skipped
  elif ((rc != 0)); then
    state=failed
    text="exit code $rc: $(grep -v '^ *$' "$log" | grep -i -m 1 -E 'error|failed|kolo-bench:' || tail -n 1 "$log")"
  elif [[ $text == FAILED* ]]; then
    state=failed
  elif [[ $text == skipped* ]]; then
    state=skipped
  fi
  note_row "$state" "$name" $((SECONDS - begin)) "$text"
  if [[ $state == failed ]]; then { tail -n 40 "$log"; cat "$work/stacks"; } | sed 's/^/    /' >&2; fi
  rm -f "$log"
  [[ $state != failed ]]
}

nothing() { :; }

test_figures() {
  local passed skipped
  passed=$(grep -c '^\[       OK ' "$1")
  skipped=$(grep -c '^\[  SKIPPED \].* ms)' "$1")
  if ((skipped > 0)); then
    printf 'FAILED: %d cases ran, %d were skipped, though there is a GPU: does CUDA see it, is NCCL loaded?' "$passed" "$skipped"
  elif ((passed == 0)); then printf 'skipped: none of %d cases can run here' "$skipped"; else printf '%d cases, %d skipped' "$passed" "$skipped"; fi
}

# Of the largest size: out of place, or in place if that is all there is.
bench_figures() {
  grep -E '^ +[0-9]' "$1" | tail -n 1 | awk '{
    peers = (NF - 13) / 4; in_place = $6 == "N/A"
    at = in_place ? 10 : 6; ratio = in_place ? 15 + 2 * peers : 15
    printf "%s bytes: %s us, %s GB/s", $1, $at, $(at + 1)
    if (peers > 0) printf ", NCCL/kolo %s", $ratio
    if (peers > 1) printf " (tensor by tensor %s)", $(ratio + 2)
    printf ", wrong %s", $(at + 3) }'
  grep -q 'backend=staged' "$1" && printf ' (staged)'
}

beside_figures() {
  grep -E '^[0-9]' "$1" | tail -n 1 | awk '{
    printf "%s bytes: %s us alone, %s us with small ones, which take %s us (p50), %s (p90), %s (p99)", $1, $2, $3, $5, $6, $7
    if (NF > 8) printf ", check %s", $9 }'
}

latency_figures() {
  awk '/^# ordered_all_reduce/ { name = "in order " } /^# send_recv/ { name = "there and back by tag, halved, " }
    /^ +[0-9]/ { printf "%s%s%s us", sep, name, $10; sep = ", " }' "$1"
}

random_figures() {
  if grep -q '^problem' "$1"; then grep -m 1 '^problem' "$1" | sed 's/^/FAILED: /'; else grep -m 1 ' programs, ' "$1" | sed -E 's/.*: ([0-9]+ programs, [0-9]+ operations).*/\1/'; fi
}

pack_figures() {
  grep -v '^#' "$1" | grep '%' | sed -E 's/ {2,}/ /g' | awk '{ n = NF; name = $1; for (i = 2; i <= n - 8; ++i) name = name " " $i
    printf "%s%s: copy %s GB/s, pack %s, unpack %s", sep, name, $(n - 5), $(n - 3), $(n - 1); sep = "; " }'
}

# The speed of the last epoch: the first one waits for libraries to load themselves.
train_figures() {
  printf '%s; %s; %s' "$(grep -E '^epoch .* step ' "$1" | tail -n 1)" "$(sed -n 's/^flops *//p' "$1")" "$(sed -n 's/^memory *//p' "$1" | tr '\n' ' ')"
}

tail_figures() {
  tail -n 1 "$1"
}

# The kernels that take most of the time.
profile_figures() {
  awk '/, Invocations [0-9]+$/ {
      name = $0; count = $NF; sub(/ \([0-9]+, .*/, "", name); sub(/^.*run_kernel</, "", name); sub(/>?\(T1\)$/, "", name); sub(/^ *(void )?/, "", name)
    }
    /gpu__time_duration.sum/ { us = count * $NF * ($2 == "ms" ? 1000 : $2 == "ns" ? 0.001 : 1); of[name] += us; counts[name] += count; all += us }
    END { for (name in of) printf "%.0f %d %s\n", of[name], counts[name], name; printf "%.0f 0 all\n", all }' "$1" |
    sort -rn | awk '{ printf "%s%s us: %s (%s)", sep, $1, substr($3, 1, 40), $2; sep = ", " }'
}

smoke_figures() {
  tail -n 1 "$1"
  grep ' FAILED ' "$1" | cut -c 1-100
}

sanitizer_figures() {
  if grep -q 'Device not supported' "$1"; then
    printf 'skipped: refused on this machine (Device not supported)'
    return
  fi
  printf '%s; ' "$(grep -h 'ERROR SUMMARY' "$1" | sort | uniq -c | sort -rn | head -n 1 | sed -E 's/^ *[0-9]+ =+ //')"
  test_figures "$1"
}

# Debian's packages, and what is built from these sources with them, as an archive has it.
unpack_packages() {
  local file link
  mkdir -p "$root"
  for file in "$packages"/*.deb; do dpkg -x "$file" "$root" || return 1; done
  # Links that would lead out of the folder.
  find "$root" -type l -lname '/*' -print0 | while IFS= read -r -d '' link; do
    ln -sfn "$root$(readlink "$link")" "$link"
  done
  # What installing, rather than unpacking, would have made.
  ln -sfn mpirun.openmpi "$root/usr/bin/mpirun"
  ln -sfn libmpi.so.40 "$root/usr/lib/x86_64-linux-gnu/libmpi.so"
  cp "$source_dir/tests/gpu_run.sh" "$root/run"
}
compile() {
  local arch generator=() header programs=(bench/kolo-bench apps/kolo-train tests/{gpu_smoke,cuda_card_test,device_backend_mpi_test,property_job})
  arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d '.')
  if command -v ninja >/dev/null; then generator=(-G Ninja); fi
  header=$(first_with nccl.h "$wheel/include" /usr/include /usr/include/x86_64-linux-gnu /usr/local/include /usr/local/cuda/include)
  [[ -n $header ]] || { printf 'error: nccl.h is missing; install NCCL 2.19 or newer with its header\n'; return 1; }
  if [[ $header != /usr/include && $header != /usr/local/include ]]; then export CPATH=$header${CPATH:+:$CPATH}; fi
  export CMAKE_PREFIX_PATH=$root/usr
  "$root/run" cmake -S "$source_dir" --preset cuda -B "$build" "${generator[@]}" -DKOLO_TESTS=ON -DKOLO_GEMM=plain \
    -DCMAKE_CUDA_ARCHITECTURES="$arch-real" -DMPI_CXX_COMPILER="$root/usr/bin/mpic++.openmpi" \
    -DMPI_C_COMPILER="$root/usr/bin/mpicc.openmpi" -DMPIEXEC_EXECUTABLE="$root/usr/bin/mpirun" -DCMAKE_POLICY_VERSION_MINIMUM=3.25 &&
    "$root/run" cmake --build "$build" -j "$(nproc)" --target "${programs[@]##*/}" && mkdir -p "$root/bin" &&
    ln -sf "${programs[@]/#/$build/}" "$root/bin"
}
unpack_archive() {
  tar -C "$work" -xzf "$archive" && cat "$root/about"
}

# first_with FILE FOLDER...: the first of the folders that has it.
first_with() {
  local file=$1 folder
  shift
  for folder; do
    if [[ -e $folder/$file ]]; then
      printf '%s' "$folder"
      return
    fi
  done
}
# NVIDIA's libraries: of Python's packages, of the system, or of CUDA's folder.
find_libraries() {
  local file folder system=/usr/lib/x86_64-linux-gnu
  for file in libnccl.so.2 libcublasLt.so.13 libcudart.so.13 libcudnn.so.9; do
    folder=$(first_with $file $system /lib/x86_64-linux-gnu "$wheel/lib" "$wheel/../cu13/lib" "$wheel/../cudnn/lib" /usr/local/lib /usr/local/cuda/lib64 /usr/local/cuda/lib)
    if [[ -n $folder && $folder != "$system" ]]; then export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder; fi
    printf '%s: %s\n' $file "${folder:-nowhere}"
  done
}

facts() {
  nvidia-smi --query-gpu=name,driver_version,memory.total,compute_mode,mig.mode.current,clocks.max.sm --format=csv,noheader
  printf '%s\n' "$(nproc) cores, $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1), kernel $(uname -r), $(getconf GNU_LIBC_VERSION)"
  printf '/dev/shm: %s; open files %s, locked memory %s\n' "$(df -h --output=size /dev/shm | tail -n 1)" "$(ulimit -n)" "$(ulimit -l)"
  [[ -d /sys/class/net/lo ]] && cat /sys/class/net/lo/operstate
  find_libraries
}
facts_figures() {
  head -n 1 "$1" | tr '\n' ' '
  grep nowhere "$1" | tr '\n' ' '
}

program() { "$root/run" "$root/bin/$1" "${@:2}"; }
# ranks N PROGRAM...: under mpirun. Several ranks on one GPU get what makes NCCL take them for ranks of several hosts.
ranks() {
  local count=$1 name=$2
  shift 2
  set -- "$root/bin/$name" "$@"
  if ((count > gpus)); then set -- "$work/as_host" "$@"; fi
  "$root/run" mpirun --oversubscribe --bind-to none -np "$count" "$@"
}
write_as_host() {
  cat >"$work/as_host" <<'EOF'
#!/usr/bin/env bash
export NCCL_HOSTID=rank$OMPI_COMM_WORLD_RANK NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo
exec "$@"
EOF
  chmod +x "$work/as_host"
}

# Several processes then run on one GPU at the same time, instead of taking turns of milliseconds.
start_mps() {
  export CUDA_MPS_PIPE_DIRECTORY=$work/mps CUDA_MPS_LOG_DIRECTORY=$work/mps
  mkdir -p "$work/mps"
  mps=true
  if nvidia-cuda-mps-control -d >/dev/null 2>&1 && sleep 1 &&
    within 30 ranks 2 kolo-bench all_reduce --device cuda -b 4K -e 4K -n 10 >"$work/mps.log" 2>&1 </dev/null; then
    printf 'gpu_check: 2 ranks share one GPU, under MPS: both run at the same time. Their speed is that of sharing.\n' | tee -a "$out/table"
  else
    stop_mps
    printf 'gpu_check: 2 ranks share one GPU, without MPS: they take turns of some milliseconds\n' | tee -a "$out/table"
  fi
}
stop_mps() {
  if ! $mps; then return; fi
  echo quit | timeout 10 nvidia-cuda-mps-control >/dev/null 2>&1
  unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
  mps=false
}

staged() { KOLO_GPU_BACKEND=staged "$@"; }
not_blocking() { KOLO_NCCL_BLOCKING=0 "$@"; }
# random N SECONDS: random programs on N ranks, half of their tensors on GPUs.
random() { ranks "$1" property_job "$work/marks" 1 "$2"; }
# part ONE_OF N: the device tests on N ranks, with every ONE_OF-th of their calls: all would take several minutes.
part() { DEVICE_TEST_ONE_OF=$1 ranks "$2" device_backend_mpi_test "${@:3}"; }
# train DEVICE FLAG...: the same steps, to be compared by their last line.
train() {
  local text=() steps=(--steps 20)
  if [[ " $* " == *' --steps '* ]]; then steps=(); fi
  if [[ " $* " == *' llama '* && -d $root/shared ]]; then text=(--data "$root/shared/data/tinyshakespeare.txt"); fi
  program kolo-train --device "$1" "${steps[@]}" "${text[@]}" "${@:2}"
}
# With kolo's own attention: what is found of cuDNN first cannot be opened.
without_cudnn() {
  mkdir -p "$work/none" && : >"$work/none/libcudnn.so.9"
  LD_LIBRARY_PATH=$work/none${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$@"
}
# A step's kernels, by their names.
profile() {
  "$root/run" ncu --clock-control none --metrics gpu__time_duration.sum --print-summary per-kernel --launch-skip 1300 --launch-count 440 \
    "$root/bin/kolo-train" --device cuda --steps 4 --data "$root/shared/data/tinyshakespeare.txt" "$@"
}
torch() { python3 "$source_dir/bench/torch_llama.py" "$@"; }
sanitize() {  # what NCCL tries of CUDA's calls, and finds missing, is no error
  DEVICE_TEST_ONE_OF=97 "$root/run" compute-sanitizer --report-api-errors no --error-exitcode 9 --launch-timeout 30 \
    "$root/bin/device_backend_mpi_test" --gtest_filter='-*/nccl_tiny'
}

# A process for each case of two ranks, so that one that hangs costs its own time and has a name.
device_tests() {
  local case one_of=$1
  for case in $(program device_backend_mpi_test --gtest_list_tests 2>/dev/null | awk '/^[^ ].*\.$/ { suite = $1 } /^  / { print suite $1 }'); do
    step "2 ranks, ${case#*/}" 15 test_figures part "$one_of" 2 --gtest_filter="$case" || true
  done
}

run_models() {
  local model device batch
  step 'models, tests' 150 test_figures program cuda_card_test || true
  for model in mlp cnn 'llama --preset tiny'; do
    for device in cpu cuda; do
      # shellcheck disable=SC2086
      step "${model%% *} on $device" 60 train_figures train "$device" --model $model || true
    done
  done
  for batch in 8 32 64; do
    step "llama base, bf16, batch $batch" 60 train_figures train cuda --model llama --preset base --precision bf16 --batch $batch --seq 2048 --steps $((batch < 32 ? 100 : batch < 64 ? 60 : 40)) || true
  done
  step 'llama base, bf16, without cuDNN' 60 train_figures without_cudnn train cuda --model llama --preset base --precision bf16 --batch 8 --seq 2048 --steps 100 || true
  if python3 -c 'import torch' 2>/dev/null; then
    for batch in 32 8; do
      step "PyTorch, batch $batch" 60 tail_figures torch --batch $batch || true
      step "PyTorch compiled, batch $batch" 100 tail_figures torch --batch $batch --compile || true
    done
  fi
  if command -v ncu >/dev/null; then
    step 'llama base, bf16, kernels' 60 profile_figures profile --model llama --preset base --precision bf16 --batch 8 --seq 2048 || true
  fi
}

run_runtime() {
  local count op shared=7 few=20
  if ((gpus < 2)) && ! $mps; then shared=17 few=5; fi
  step 'device tests, 1 rank' 60 test_figures part 7 1 || true
  device_tests $shared
  step 'pack and unpack' 40 pack_figures program kolo-bench all_reduce --device cuda --pack || true
  step 'pack and unpack, resnet50' 30 pack_figures program kolo-bench all_reduce --device cuda --pack --buckets resnet50 || true
  for count in 1 2; do
    step "all_reduce direct, $count ranks" 40 bench_figures ranks $count kolo-bench all_reduce --direct --device cuda -b 4K -e 64M -f 16 -n 30 --compare nccl || true
    step "all_reduce by session, $count ranks" 40 bench_figures ranks $count kolo-bench all_reduce --device cuda --memory session -b 4K -e 64M -f 16 -n 30 --compare nccl || true
    step "resnet50 by session, $count ranks" 40 bench_figures ranks $count kolo-bench all_reduce --device cuda --memory session --buckets resnet50 -n $((count == 1 ? 20 : few)) --compare nccl || true
  done
  step 'the same, not blocking, 2 ranks' 40 bench_figures not_blocking ranks 2 kolo-bench all_reduce --device cuda --memory session --buckets resnet50 -n $few --compare nccl || true
  step 'resnet50 staged, 2 ranks' 40 bench_figures staged ranks 2 kolo-bench all_reduce --device cuda --buckets resnet50 -n 5 || true
  step 'all_reduce in order, 2 ranks' 40 bench_figures ranks 2 kolo-bench all_reduce --ordered --device cuda -b 4K -e 64M -f 16 -n 30 --compare nccl || true
  step 'latency, 2 ranks' 40 latency_figures ranks 2 kolo-bench all_reduce --latency --device cuda -n 200 || true
  step 'random programs, 2 ranks' 60 random_figures random 2 30 || true
  step 'random programs, 3 ranks' 60 random_figures random 3 15 || true
  step 'small ones beside 64 MiB, 2 ranks' 40 beside_figures ranks 2 kolo-bench all_reduce --device cuda --beside 4 -b 64M -e 64M -n 10 || true
  for op in all_gather reduce_scatter broadcast reduce all_to_all gather scatter send_recv; do
    step "$op, 2 ranks" 30 bench_figures ranks 2 kolo-bench $op --device cuda -b 1M -e 16M -f 16 -n 10 --compare nccl || true
  done
  stop_mps  # a sanitizer does not work with it
  if command -v compute-sanitizer >/dev/null; then step 'compute-sanitizer, 1 rank' 120 sanitizer_figures sanitize || true; fi
}

wheel=$(python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])' 2>/dev/null) || wheel=/nowhere
mkdir -p "$out"
# Steps run in shells of their own.
for name in $(declare -F | cut -d ' ' -f 3); do export -f "${name?}"; done
export source_dir packages archive work root build wheel gpus

find_libraries >/dev/null
step 'this machine' 15 facts_figures facts
if [[ -n $packages ]]; then
  step 'unpack the packages' 60 nothing unpack_packages && step 'build' 420 nothing compile || exit 1
else
  step 'unpack the archive' 30 nothing unpack_archive || exit 1
fi
write_as_host
step 'smoke' 120 smoke_figures program gpu_smoke || true
run_models
if ((gpus < 2)) && [[ 'ranks' =~ $wanted ]]; then start_mps; fi
run_runtime

printf '\n'
printf '%s\n' "${rows[@]}"
printf 'gpu_check: %s, %d s; the table and the log are in %s\n' "$( ((failed == 0)) && printf 'nothing failed' || printf 'FAILED')" "$SECONDS" "$out"
exit "$failed"
