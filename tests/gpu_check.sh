#!/usr/bin/env bash
# Builds kolo with CUDA on a machine that has CUDA, NCCL, CMake and a compiler but nothing else and no network, runs what needs a
# GPU there, and prints a table of it. Changes nothing outside of its folder.
set -uo pipefail

limit=470  # seconds for everything

usage() {
  cat <<EOF
usage: tests/gpu_check.sh PACKAGES [FOLDER]

PACKAGES  folder with what tests/gather_packages.sh downloaded; if there is a folder bin in it with kolo-bench,
          device_backend_mpi_test and property_job, built elsewhere from these sources, nothing is built here
FOLDER    where packages are unpacked and kolo is built (default: a new one under \${TMPDIR:-/tmp}, deleted at the end)

Ends with 0 if nothing failed, 1 if something did. Without a GPU it builds, says so, and skips the rest. Takes at most $limit s.
EOF
}

fail() {
  printf 'gpu_check: %s\n' "$*" >&2
  exit 1
}

case ${1:-} in
  -h | --help) usage; exit 0 ;;
  '' | -*) usage >&2; exit 2 ;;
esac
temporary=false
mps=false
trap clean_up EXIT
source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
packages=$(cd "$1" && pwd) || exit 1
if (($# > 1)); then
  mkdir -p "$2" && work=$(cd "$2" && pwd) || exit 1
else
  work=$(mktemp -d) || exit 1
  temporary=true
fi
root=$work/root
build=$work/build

rows=()
failed=0
note_row() {  # STATE NAME SECONDS FIGURES
  rows+=("$(printf '%-7s  %-34s  %5s s  %s' "$@")")
  printf '%s\n' "${rows[-1]}"
  if [[ $1 == failed ]]; then failed=1; fi
}

# step NAME SECONDS FIGURES COMMAND...: one row of the table. FIGURES is a function that prints what is worth it of the output.
step() {
  local name=$1 seconds=$2 figures=$3 log begin=$SECONDS rc=0 left=$((limit - SECONDS)) state=passed text
  shift 3
  log=$work/${name//[^a-zA-Z0-9]/_}.log
  if ((left < 5)); then
    note_row skipped "$name" 0 "no time is left of the $limit s"
    return 1
  fi
  timeout -k 5 $((seconds < left ? seconds : left)) bash -c '"$@"' step "$@" >"$log" 2>&1 </dev/null || rc=$?
  sed -i 's/\r$//' "$log"  # of mpirun's terminal
  text=$("$figures" "$log")
  if ((rc == 124 || rc == 137)); then
    state=failed text="took longer than $((seconds < left ? seconds : left)) s"
  elif [[ $text == 'skipped: refused'* ]]; then
    state=skipped
  elif ((rc != 0)); then
    state=failed
    text="exit code $rc: $(grep -v '^ *$' "$log" | grep -i -m 1 -E 'error|failed|kolo-bench:' || tail -n 1 "$log")"
    tail -n 25 "$log" | sed 's/^/    /' >&2
  elif [[ $text == FAILED* ]]; then
    state=failed
  elif [[ $text == skipped* ]]; then
    state=skipped
  fi
  note_row "$state" "$name" $((SECONDS - begin)) "$text"
  [[ $state != failed ]]
}

nothing() { :; }

test_figures() {
  local passed skipped
  passed=$(grep -c '^\[       OK ' "$1")
  skipped=$(grep -c '^\[  SKIPPED \].* ms)' "$1")
  if ((gpus > 0 && skipped > 0)); then
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

train_figures() {
  grep -E '^epoch .* step ' "$1" | tail -n 1
}

sanitizer_figures() {
  if grep -q 'Device not supported' "$1"; then
    printf 'skipped: refused on this machine (Device not supported)'
    return
  fi
  printf '%s; ' "$(grep -h 'ERROR SUMMARY' "$1" | sort | uniq -c | sort -rn | head -n 1 | sed -E 's/^ *[0-9]+ =+ //')"
  test_figures "$1"
}

unpack() {
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
}

# Everything that looks for Open MPI, or for a library, finds that of the folder first. Of Open MPI's ways to talk only the plain
# ones are tried, and of those none that a container may forbid.
use_packages() {
  local lib=$root/usr/lib/x86_64-linux-gnu
  export PATH=$root/usr/bin:$PATH:/usr/local/cuda/bin
  export CMAKE_PREFIX_PATH=$root/usr
  export LD_LIBRARY_PATH=$lib:$root/lib/x86_64-linux-gnu:$lib/openmpi/lib:$lib/pmix2/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export OPAL_PREFIX=$root/usr OPAL_LIBDIR=$lib OPAL_PKGLIBDIR=$lib/openmpi OPAL_DATADIR=$root/usr/share OPAL_SYSCONFDIR=$root/etc/openmpi
  export OMPI_MCA_mca_base_component_path=$lib/openmpi/lib/openmpi3 OMPI_MCA_mca_base_param_files=$root/etc/openmpi/openmpi-mca-params.conf
  export PMIX_INSTALL_PREFIX=$lib/pmix2 PMIX_MCA_mca_base_component_path=$lib/pmix2/lib/pmix
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_plm_rsh_agent=/bin/false
  export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader,tcp OMPI_MCA_btl_vader_single_copy_mechanism=none
  export OMPI_MCA_btl_base_warn_component_unused=0 OMPI_MCA_mca_base_component_show_load_errors=0 GTEST_COLOR=no
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
anywhere() {
  local found
  found=$(timeout 20 find / -xdev -path /proc -prune -o -name "$1" -print -quit 2>/dev/null)
  printf '%s' "${found%/*}"
}

# NCCL's header and library: of Python's packages, of the system, of CUDA's folder, or from elsewhere.
find_nccl() {
  local wheel header library system=/usr/lib/x86_64-linux-gnu
  wheel=$(python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])' 2>/dev/null) || wheel=/nowhere
  header=$(first_with nccl.h "$wheel/include" /usr/include /usr/include/x86_64-linux-gnu /usr/local/include /usr/local/cuda/include)
  library=$(first_with libnccl.so.2 "$wheel/lib" $system /lib/x86_64-linux-gnu /usr/local/lib /usr/local/cuda/lib64 /usr/local/cuda/lib)
  : "${header:=$(anywhere nccl.h)}" "${library:=$(anywhere libnccl.so.2)}"
  [[ -n $header ]] || fail 'nccl.h is missing; install NCCL 2.19 or newer with its header'
  [[ -n $library ]] || ((gpus == 0)) || fail 'libnccl.so.2 is missing; install NCCL 2.19 or newer'
  if [[ $header != /usr/include && $header != /usr/local/include ]]; then export CPATH=$header${CPATH:+:$CPATH}; fi
  if [[ -n $library && $library != "$system" ]]; then export LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$library; fi
  printf 'gpu_check: nccl.h of %s, libnccl.so.2 of %s\n' "$header" "${library:-nowhere}"
}

configure() {
  local generator=()
  if command -v ninja >/dev/null; then generator=(-G Ninja); fi
  cmake -S "$source_dir" --preset cuda -B "$build" "${generator[@]}" -DKOLO_TESTS=ON -DKOLO_GEMM=plain -DCMAKE_CUDA_ARCHITECTURES="$arch" \
    -DMPI_CXX_COMPILER="$root/usr/bin/mpic++.openmpi" -DMPI_C_COMPILER="$root/usr/bin/mpicc.openmpi" \
    -DMPIEXEC_EXECUTABLE="$root/usr/bin/mpirun" -DCMAKE_POLICY_VERSION_MINIMUM=3.25
}

take_programs() {
  install -D "$packages/bin/kolo-bench" "$build/bench/kolo-bench" && install -D -t "$build/tests" "$packages"/bin/{device_backend_mpi_test,property_job}
}

compile() {
  cmake --build "$build" -j "$(nproc)" --target kolo-bench device_backend_mpi_test property_job
}
compile_models() {
  cmake --build "$build" -j "$(nproc)" --target cuda_card_test kolo-train
}

# ranks N PROGRAM...: under mpirun. Several ranks on one GPU get what makes NCCL take them for ranks of several hosts.
ranks() {
  local count=$1
  shift
  if ((count > gpus)); then set -- "$work/as_host" "$@"; fi
  mpirun --oversubscribe --bind-to none -np "$count" "$@"
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
  mkdir -p "$work/mps"
  nvidia-cuda-mps-control -d 2>/dev/null && { sleep 1; pgrep -f nvidia-cuda-mps-control >/dev/null; }
}
stop_mps() {
  echo quit | timeout 10 nvidia-cuda-mps-control >/dev/null 2>&1
  unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
  mps=false
}
clean_up() {
  if $mps; then stop_mps; fi
  if $temporary; then rm -rf "$work"; fi
}

mpi_works() {
  [[ $(command -v mpirun) == "$root/usr/bin/mpirun" ]] && [[ $(mpirun --oversubscribe -np 2 printenv OMPI_COMM_WORLD_RANK | sort | tr '\n' ' ') == '0 1 ' ]]
}

staged() { KOLO_GPU_BACKEND=staged "$@"; }
# random N SECONDS: random programs on N ranks, half of their tensors on GPUs.
random() { ranks "$1" "$build/tests/property_job" "$work/marks" 1 "$2"; }
# part ONE_OF N: the device tests on N ranks, with every ONE_OF-th of their calls: all would take several minutes.
part() { DEVICE_TEST_ONE_OF=$1 ranks "$2" "$build/tests/device_backend_mpi_test"; }
# train DEVICE FLAG...: the same steps, to be compared by their last line.
train() { "$build/apps/kolo-train" --device "$1" --steps 20 "${@:2}"; }
sanitize() {  # what NCCL tries of CUDA's calls, and finds missing, is no error
  DEVICE_TEST_ONE_OF=97 compute-sanitizer --report-api-errors no --error-exitcode 9 --launch-timeout 30 \
    "$build/tests/device_backend_mpi_test" --gtest_filter='-*/nccl_tiny'
}

run_all() {
  local bench=$build/bench/kolo-bench count op model device shared=7 few=20
  if ((gpus < 2)) && ! $mps; then shared=17 few=5; fi
  step 'device tests, 1 rank' 60 test_figures part 7 1 || true
  step 'device tests, 2 ranks' 90 test_figures part $shared 2 || true
  if [[ ! -d $packages/bin ]] && step 'build the models' 200 nothing compile_models; then
    step 'models, 1 rank' 120 test_figures "$build/tests/cuda_card_test" || true
    for model in mlp cnn 'llama --preset tiny'; do
      for device in cpu cuda; do
        step "${model%% *} on $device" 60 train_figures train "$device" --model $model || true
      done
    done
    step 'llama, bf16, on cuda' 60 train_figures train cuda --model llama --precision bf16 || true
  fi
  step 'pack and unpack' 40 pack_figures "$bench" all_reduce --device cuda --pack || true
  step 'pack and unpack, resnet50' 30 pack_figures "$bench" all_reduce --device cuda --pack --buckets resnet50 || true
  for count in 1 2; do
    step "all_reduce direct, $count ranks" 40 bench_figures ranks $count "$bench" all_reduce --direct --device cuda -b 4K -e 64M -f 16 -n 30 --compare nccl || true
    step "all_reduce by session, $count ranks" 40 bench_figures ranks $count "$bench" all_reduce --device cuda --memory session -b 4K -e 64M -f 16 -n 30 --compare nccl || true
    step "resnet50 by session, $count ranks" 40 bench_figures ranks $count "$bench" all_reduce --device cuda --memory session --buckets resnet50 -n $((count == 1 ? 20 : few)) --compare nccl || true
  done
  step 'resnet50 staged, 2 ranks' 40 bench_figures staged ranks 2 "$bench" all_reduce --device cuda --buckets resnet50 -n 5 || true
  step 'all_reduce in order, 2 ranks' 40 bench_figures ranks 2 "$bench" all_reduce --ordered --device cuda -b 4K -e 64M -f 16 -n 30 --compare nccl || true
  step 'latency, 2 ranks' 40 latency_figures ranks 2 "$bench" all_reduce --latency --device cuda -n 200 || true
  step 'random programs, 2 ranks' 60 random_figures random 2 30 || true
  step 'random programs, 3 ranks' 60 random_figures random 3 15 || true
  step 'small ones beside 64 MiB, 2 ranks' 40 beside_figures ranks 2 "$bench" all_reduce --device cuda --beside 4 -b 64M -e 64M -n 10 || true
  for op in all_gather reduce_scatter broadcast reduce all_to_all gather scatter send_recv; do
    step "$op, 2 ranks" 30 bench_figures ranks 2 "$bench" $op --device cuda -b 1M -e 16M -f 16 -n 10 --compare nccl || true
  done
  if $mps; then stop_mps; fi  # a sanitizer does not work with it
  if command -v compute-sanitizer >/dev/null; then
    step 'compute-sanitizer, 1 rank' 120 sanitizer_figures sanitize || true
  else
    note_row skipped compute-sanitizer 0 'it is not on this machine'
  fi
}

# Steps run in shells of their own.
export -f unpack configure compile compile_models train take_programs ranks mpi_works part random staged sanitize
export source_dir packages work root build

PATH=$PATH:/usr/local/cuda/bin:/usr/local/nvidia/bin  # the second: of the driver, in containers
command -v nvcc >/dev/null || fail "nvcc is missing (there is no CUDA Toolkit on this machine); install it, or name its bin in PATH"
command -v g++ >/dev/null || fail 'g++ is missing; install a compiler'
command -v cmake >/dev/null || fail 'cmake is missing; install CMake 3.25 or newer'
command -v dpkg >/dev/null || fail 'dpkg is missing, which unpacks the packages; use a Debian or Ubuntu system'
[[ -n $(find "$packages" -name '*.deb' -print -quit) ]] || fail "$packages has no package files; fill it with tests/gather_packages.sh"

glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null | awk '{ print $2 }')
[[ $(uname -m) == x86_64 ]] || fail "the packages are for x86_64 (this is $(uname -m)); use such a machine"
[[ $(printf '2.36\n%s\n' "$glibc" | sort -V | head -n 1) == 2.36 ]] ||
  fail "glibc ${glibc:-of an unknown version} is older than the packages' (2.36, Debian 12); use Debian 12, Ubuntu 24.04, or newer"

gpus=$(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null | grep -c '^[0-9]') || gpus=0
arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d '.')
[[ $arch =~ ^[0-9]+$ ]] && arch=$arch-real || arch=90-real
export gpus arch
printf 'gpu_check: %s\n' "$(nvcc --version | tail -n 2 | head -n 1), architecture $arch, $(nproc) cores, in $work"

step 'unpack the packages' 60 nothing unpack || exit 1
use_packages
step 'mpirun of the packages' 30 nothing mpi_works || exit 1
find_nccl
write_as_host
if [[ -d $packages/bin ]]; then
  step 'take the programs that are there' 20 nothing take_programs || exit 1
else
  step 'configure' 90 nothing configure || exit 1
  step 'build' 400 nothing compile || exit 1
fi
if ((gpus > 0)); then
  if ((gpus < 2)); then
    printf 'gpu_check: 2 ranks share one GPU: each has its own NCCL_HOSTID, with NCCL_NET=Socket and NCCL_SOCKET_IFNAME=lo. Their speed is that of sharing.\n'
    export CUDA_MPS_PIPE_DIRECTORY=$work/mps CUDA_MPS_LOG_DIRECTORY=$work/mps
    if start_mps && timeout 30 bash -c 'ranks 2 "$build/bench/kolo-bench" all_reduce --device cuda -b 4K -e 4K -n 10' >"$work/mps.log" 2>&1 </dev/null; then
      mps=true
      printf 'gpu_check: under MPS: both run at the same time\n'
    else
      stop_mps
      printf 'gpu_check: MPS does not work here: they take turns of some milliseconds\n'
    fi
  fi
  run_all
else
  step 'device tests, 1 rank' 60 test_figures ranks 1 "$build/tests/device_backend_mpi_test" || true
fi

printf '\n%s\n' "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null || printf 'no GPU')"
printf '%s\n' "${rows[@]}"
if ((gpus == 0)); then printf 'gpu_check: this machine has no GPU (nvidia-smi names none): kolo was built, and all GPU tests and benchmarks were SKIPPED\n'; fi
printf 'gpu_check: %s, %d s\n' "$( ((failed == 0)) && printf 'nothing failed' || printf 'FAILED')" "$SECONDS"
exit "$failed"
