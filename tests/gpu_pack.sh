#!/usr/bin/env bash
# Makes one archive of what tests/gpu_check.sh runs on a machine with a GPU but without compiler, MPI and network.
set -euo pipefail

most_mb=50

usage() {
  cat <<USAGE
usage: tests/gpu_pack.sh ARCHIVE [BUILD]

ARCHIVE  the file to make, of at most $most_mb MB: kolo's GPU programs for sm_90 (with PTX for newer cards), Open MPI, the libraries
         that both load except glibc, libstdc++ and NVIDIA's, and reference numbers, if there are any (KOLO_SHARED_DIR)
BUILD    folder that they are built in (default: build-gpu beside this checkout's sources)

Needs CUDA's Toolkit, NCCL's header and what kolo is built with, on Debian. Run tests/gpu_check.sh ARCHIVE on the other machine.
USAGE
}

fail() {
  printf 'gpu_pack: %s\n' "$*" >&2
  exit 1
}

case ${1:-} in
  -h | --help) usage; exit 0 ;;
  '' | -*) usage >&2; exit 2 ;;
esac
source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
mkdir -p "$(dirname "$1")"
archive=$(realpath "$1")
build=${2:-$source_dir/build-gpu}
shared=${KOLO_SHARED_DIR:-$source_dir/../shared}
programs=(tests/gpu_smoke bench/kolo-bench apps/kolo-train tests/cuda_card_test tests/device_backend_mpi_test tests/property_job)
PATH=$PATH:/usr/local/cuda/bin

command -v nvcc >/dev/null || fail 'nvcc is missing (there is no CUDA Toolkit on this machine); install it, or name its bin in PATH'
mpirun=$(readlink -f "$(command -v mpirun)") || fail 'mpirun is missing; install Open MPI'
libraries=/usr/lib/x86_64-linux-gnu
[[ -d $libraries/openmpi ]] || fail "Open MPI is not Debian's ($libraries/openmpi is missing); use Debian 12"

cmake -S "$source_dir" --preset cuda -B "$build" -DKOLO_TESTS=ON -DKOLO_GEMM=plain -DCMAKE_CUDA_ARCHITECTURES=90 >/dev/null
targets=("${programs[@]##*/}")
cmake --build "$build" -j "$(nproc)" --target "${targets[@]}"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/kolo-gpu
lib=$root$libraries
mkdir -p "$root"/{bin,etc,usr/bin,usr/share} "$lib"/{openmpi,pmix2}/lib
for program in "${programs[@]}"; do strip -o "$root/bin/${program##*/}" "$build/$program"; done
cp "$source_dir/tests/gpu_run.sh" "$root/run"
cp "$mpirun" "$root/usr/bin/mpirun"
cp "$(command -v orted)" "$root/usr/bin/orted"
cp -r /etc/openmpi "$root/etc/openmpi"
cp -rL /usr/share/openmpi "$root/usr/share/openmpi"
cp -rL "$libraries/openmpi/lib/openmpi3" "$lib/openmpi/lib/openmpi3"
cp -rL "$libraries/pmix2/lib/pmix" "$lib/pmix2/lib/pmix"
if [[ -d $libraries/pmix2/share ]]; then cp -rL "$libraries/pmix2/share" "$lib/pmix2/share"; fi
# What talks over fabrics, or belongs to other launchers, would bring many libraries.
rm -f "$lib"/openmpi/lib/openmpi3/*_{ucx,ofi,openib,slurm,gridengine,romio321,monitoring,flux,jsm}.so "$lib"/openmpi/lib/openmpi3/mca_mtl_*.so

# Every library that something of it loads. glibc, the compiler's and NVIDIA's are those of the other machine.
others='libc|libm|libdl|libpthread|librt|libutil|libresolv|libanl|ld-linux.*|libstdc\+\+|libgcc_s|libgomp|libcuda|libcudart|libcublas.*|libnccl|libnvidia.*'
{ find "$root/bin" "$root/usr" -type f -print0 | xargs -0 -n 1 ldd 2>/dev/null || true; } | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | sort -u |
  grep -v -E "^($others)\.so" | while read -r name path; do cp -L "$path" "$lib/$name"; done

if [[ -d $shared/golden ]]; then
  mkdir -p "$root/shared/data"
  cp -r "$shared/golden" "$root/shared/golden"
  cp "$shared"/data/{t10k-*,*.txt} "$root/shared/data"
fi
{
  printf 'sources: %s\n' "$(git -C "$source_dir" describe --always --dirty 2>/dev/null || echo unknown)"
  printf 'made: %s\n' "$(date -u +%F)"
  printf 'glibc at least: %s\n' "$(getconf GNU_LIBC_VERSION | awk '{ print $2 }')"
  nvcc --version | sed -n 's/^Cuda/CUDA/p'
} >"$root/about"

tar -C "$work" -cf - kolo-gpu | gzip -6 >"$archive"
bytes=$(stat -c %s "$archive")
((bytes <= most_mb * 1000 * 1000)) || fail "$archive has $((bytes / 1000000)) MB (at most $most_mb are carried): $(du -sm "$root"/* | sort -rn | head -n 3 | tr '\t\n' ' ,')"
printf 'gpu_pack: %s, %d MB: %s\n' "$archive" $((bytes / 1000000)) "${targets[*]}"
