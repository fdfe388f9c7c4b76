#!/usr/bin/env bash
# Builds apps/embed the way another project would, and runs it.
#
# usage: package_test.sh static|shared|sources SOURCE_DIR BUILD_DIR SCRATCH_DIR
#
# static   against `cmake --install` of BUILD_DIR
# shared   against an installed build with BUILD_SHARED_LIBS
# sources  against SOURCE_DIR, which FetchContent hands to find_package(kolo)
set -euo pipefail
mode=$1 source=$2 build=$3 scratch=$4

fail() {
  printf 'package_test: %s\n' "$*" >&2
  exit 1
}

# Runs a step quietly; shows what it said if it fails.
quietly() {
  "$@" >"$scratch/log" 2>&1 || {
    cat "$scratch/log" >&2
    fail "failed: $*"
  }
}

# Builds apps/embed with the given options of CMake.
build_embed() {
  quietly cmake -S "$source/apps/embed" -B "$scratch/embed" -G Ninja -DCMAKE_BUILD_TYPE=Release "$@"
  quietly cmake --build "$scratch/embed"
}

# The installed tree works wherever it is moved, and mentions no folder of the build.
check_installed() {
  local prefix=$scratch/moved header
  mv "$scratch/installed" "$prefix"
  if grep -rIlF -e "$source" -e "$build" -e "$scratch" "$prefix/include" "$prefix"/lib*/cmake; then
    fail "the files above mention folders of the build"
  fi
  for header in "$prefix"/include/kolo/*.h; do  # each header stands on its own
    quietly mpicxx -std=c++20 -DOMPI_SKIP_MPICXX -fsyntax-only -I "$prefix/include" -x c++ "$header"
  done
  if [[ -x $prefix/bin/kolo-train ]]; then quietly "$prefix/bin/kolo-train" --help; fi
}

# run_embed RANKS: every program says on every rank that the sum is right. 0 ranks: without a launcher.
run_embed() {
  local ranks=$1 size=$(($1 > 0 ? $1 : 1)) launcher=() program output said
  if ((ranks > 0)); then launcher=(mpirun --oversubscribe --timeout 60 -np "$ranks"); fi
  for program in embed embed_host_mpi embed_twice; do
    output=$("${launcher[@]}" "$scratch/embed/$program") || fail "$program fails on $ranks ranks: $output"
    said=$(grep -c "^$program: rank [0-9]* of $size: the sum is" <<<"$output" || true)
    ((said == size)) || fail "$program on $ranks ranks: $said of $size ranks report: $output"
  done
  printf '%s: %d ranks\n' "$mode" "$ranks"
}

rm -rf "$scratch"
mkdir -p "$scratch"
case $mode in
  static)
    quietly cmake --install "$build" --prefix "$scratch/installed"
    check_installed
    build_embed -DCMAKE_PREFIX_PATH="$scratch/moved"
    ;;
  shared)
    quietly cmake -S "$source" -B "$scratch/kolo" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON \
      -DKOLO_TESTS=OFF -DKOLO_PROGRAMS=OFF
    quietly cmake --build "$scratch/kolo"
    quietly cmake --install "$scratch/kolo" --prefix "$scratch/installed"
    check_installed
    build_embed -DCMAKE_PREFIX_PATH="$scratch/moved"
    ;;
  sources)
    cat >"$scratch/provide.cmake" <<EOF
include(FetchContent)
FetchContent_Declare(kolo SOURCE_DIR "$source" OVERRIDE_FIND_PACKAGE)
EOF
    build_embed -DCMAKE_PROJECT_kolo_embed_INCLUDE="$scratch/provide.cmake"
    [[ ! -e $scratch/embed/_deps/kolo-build/apps ]] || fail "a project that adds kolo gets its programs built too"
    ;;
  *) fail "unknown mode: $mode" ;;
esac
for ranks in 0 1 2 3; do run_embed "$ranks"; done
