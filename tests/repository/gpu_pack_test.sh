#!/usr/bin/env bash
# What tests/gpu_pack.sh has put into its archive starts on a bare system of another distribution, with another glibc and without any -dev
# package: Debian 13, which is installed into a folder. usage: tests/repository/gpu_pack_test.sh [BUILD], as gpu_pack.sh. Root only; takes the network.
set -euo pipefail

skip() {
  printf 'skipped: %s\n' "$*"
  exit 77
}
fail() {
  printf 'FAILED: %s\n' "$*" >&2
  exit 1
}

PATH=$PATH:/usr/sbin:/sbin:/usr/local/cuda/bin
command -v nvcc >/dev/null || skip 'no nvcc on this machine'
command -v debootstrap >/dev/null || skip 'no debootstrap on this machine'
((EUID == 0)) || skip 'only root can change into another system'
tests=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
system=$work/system
trap 'umount "$system/proc" "$system/sys" "$system/dev" 2>/dev/null || true; rm -rf --one-file-system "$work"' EXIT

"$tests/gpu_pack.sh" "$work/kolo-gpu.tar.gz" "$@"
debootstrap --variant=minbase trixie "$system" >"$work/log" 2>&1 || { tail -n 5 "$work/log"; skip 'Debian 13 cannot be installed here'; }
mount --bind /dev "$system/dev"
mount --bind /sys "$system/sys"
mount -t proc proc "$system/proc"
mkdir "$system/kolo"
cp "$work/kolo-gpu.tar.gz" "$tests/gpu_check.sh" "$system/kolo"

inside() {  # NAME COMMAND: prints what it says
  local status=0
  chroot "$system" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/root bash -c "cd /kolo && $2" >"$work/said" 2>&1 </dev/null || status=$?
  sed "s/^/$1: /" "$work/said"
  return $status
}
says() {  # NAME WHAT
  grep -qE "$2" "$work/said" || fail "$1: does not say '$2'"
}

inside system 'getconf GNU_LIBC_VERSION; ! command -v gcc mpirun nvidia-smi' || fail 'the system is not bare'
inside check './gpu_check.sh kolo-gpu.tar.gz' || fail 'gpu_check.sh'
says check '^skipped: this machine has no GPU'
inside unpack 'tar -xzf kolo-gpu.tar.gz' || fail 'the archive cannot be unpacked'
inside libraries 'for file in kolo-gpu/bin/* kolo-gpu/usr/bin/*; do kolo-gpu/run ldd "$file" | grep "not found" && exit 1; done; true' || fail 'a library is missing'
inside smoke 'kolo-gpu/run gpu_smoke' || fail 'gpu_smoke'
says smoke '^skipped: there is no GPU here'
inside train '! kolo-gpu/run kolo-train --device cuda' || fail 'kolo-train found a GPU'
says train '^kolo-train: --device cuda finds no GPU'
inside ranks 'kolo-gpu/run mpirun --oversubscribe -np 2 kolo-train --sizes 784,16,10 --batch 8 --steps 20' || fail 'two ranks on CPUs'
says ranks '^memory +.* per rank'
inside bench 'kolo-gpu/run mpirun --oversubscribe -np 2 kolo-bench all_reduce -b 4K -e 64K -n 5' || fail 'kolo-bench'
printf 'ok: the archive runs on another system\n'
