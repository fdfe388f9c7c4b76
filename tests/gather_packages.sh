#!/usr/bin/env bash
# Downloads Debian's package files that tests/gpu_check.sh needs where nothing can be fetched: Open MPI, with what it loads, and
# the libraries that kolo is built with; no compiler, no CMake, no BLAS, no oneDNN.
set -euo pipefail

most_mb=60
packages=(
  openmpi-bin openmpi-common libopenmpi3 libopenmpi-dev                                   # mpirun, mpicxx, mpi.h
  libpmix2 libhwloc15 libevent-2.1-7 libevent-core-2.1-7 libevent-pthreads-2.1-7 libltdl7 # what they load
  libucx0 libfabric1 libibverbs1 librdmacm1 libnl-3-200 libnl-route-3-200 libpsm-infinipath1 libpsm2-2 libmunge2
  libnuma1 libudev1 libuuid1
  libboost1.74-dev libboost-program-options1.74-dev libboost-program-options1.74.0        # command lines
  libfmt-dev libfmt9 nlohmann-json3-dev zlib1g-dev zlib1g                                 # text, JSON, gzipped data
  libgtest-dev                                                                            # tests
)

usage() {
  cat <<EOF
usage: tests/gather_packages.sh FOLDER

Downloads these into FOLDER, which is made, with apt-get on Debian 12 (at most $most_mb MB; what is there already is kept):
$(printf '%s\n' "${packages[*]}" | fold -s -w 100 | sed 's/^/  /')
EOF
}

fail() {
  printf 'gather_packages: %s\n' "$*" >&2
  exit 1
}

case ${1:-} in
  -h | --help) usage; exit 0 ;;
  '' | -*) usage >&2; exit 2 ;;
esac
command -v apt-get >/dev/null || fail "apt-get is missing (this is not a Debian system); run it on Debian 12"
mkdir -p "$1"
cd "$1"

# apt-get's own user may not write there, and says so.
apt-get -q -o APT::Sandbox::User=root download "${packages[@]}" </dev/null ||
  fail "apt-get could not download everything (its messages are above); run apt-get update, or use Debian 12"

bytes=$(cat ./*.deb | wc -c)
((bytes <= most_mb * 1000 * 1000)) || fail "the packages are $((bytes / 1000000)) MB (at most $most_mb are carried); empty $1 and run this again"
printf 'gather_packages: %d packages, %d MB, in %s\n' "$(find . -name '*.deb' | wc -l)" $((bytes / 1000000)) "$1"
