#!/usr/bin/env bash
# Builds apps/embed the way another project would, and runs it.
#
# usage: package_test.sh installed|sources SOURCE_DIR BUILD_DIR SCRATCH_DIR
#
# installed  against `cmake --install` of BUILD_DIR, a static library
# sources    against SOURCE_DIR, which FetchContent hands to find_package(kolo), as a shared library; then against that,
#            installed
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

# build_embed NAME OPTION...: builds apps/embed in a folder of that name, with these options of CMake.
build_embed() {
  local folder=$scratch/$1
  shift
  quietly cmake -S "$source/apps/embed" -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 -DCMAKE_UNITY_BUILD=ON "$@"
  quietly cmake --build "$folder"
}

# The installed tree works wherever it is moved, and mentions no folder of the build.
check_installed() {
  local prefix=$scratch/moved
  mv "$scratch/installed" "$prefix"
  if grep -rIlF -e "$source" -e "$build" -e "$scratch" "$prefix/include" "$prefix"/lib*/cmake; then
    fail "the files above mention folders of the build"
  fi
  if [[ -x $prefix/bin/kolo-train ]]; then quietly "$prefix/bin/kolo-train" --help; fi
}

# Each installed header stands on its own, those for C in C11; and includes nothing of libraries that only the sources need.
check_headers() {
  local include=$scratch/moved/include header
  find "$include" -name '*.h' -print0 | quietly xargs -0 -n 1 -P "$(nproc)" mpicxx -std=c++20 -DOMPI_SKIP_MPICXX -fsyntax-only \
    -I "$include" -I "$include/kolo_models" -x c++
  if grep -rlE '#include <(nlohmann|dnnl|oneapi|cblas|zlib|cuda|cublas)' "$include"; then fail "the headers above need other libraries"; fi
  for header in "$include"/kolo/kolo_c*.h; do
    quietly mpicc -std=c11 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -I "$include" -include "$header" -x c /dev/null
  done
}

# run_embed NAME RANKS: every program says on every rank that the sum, or the loss, is right. 0 ranks: without a launcher.
run_embed() {
  local name=$1 ranks=$2 size=$(($2 > 0 ? $2 : 1)) launcher=() program programs output said
  programs=(embed embed_c embed_host_mpi embed_twice)
  if [[ $name == on_static ]]; then programs+=(embed_models); fi
  if ((ranks > 0)); then launcher=(mpirun --oversubscribe --timeout 60 -np "$ranks"); fi
  for program in "${programs[@]}"; do
    output=$("${launcher[@]}" "$scratch/$name/$program") || fail "$program fails on $ranks ranks: $output"
    said=$(grep -c "^$program: rank [0-9]* of $size: the \(sum\|loss\) is" <<<"$output" || true)
    ((said == size)) || fail "$program on $ranks ranks: $said of $size ranks report: $output"
  done
  printf '%s: %d ranks\n' "$name" "$ranks"
}

rm -rf "$scratch"
mkdir -p "$scratch"
case $mode in
  installed)
    quietly cmake --install "$build" --prefix "$scratch/installed"
    check_installed
    check_headers
    build_embed on_static -DCMAKE_PREFIX_PATH="$scratch/moved"
    for ranks in 0 1 2 3; do run_embed on_static "$ranks"; done
    ;;
  sources)
    cat >"$scratch/provide.cmake" <<EOF
include(FetchContent)
FetchContent_Declare(kolo SOURCE_DIR "$source" OVERRIDE_FIND_PACKAGE)
EOF
    build_embed on_sources -DCMAKE_PROJECT_kolo_embed_INCLUDE="$scratch/provide.cmake" \
      -DCMAKE_UNITY_BUILD=ON -DBUILD_SHARED_LIBS=ON -DKOLO_INSTALL=ON
    [[ ! -e $scratch/on_sources/_deps/kolo-build/apps ]] || fail "a project that adds kolo gets its programs built too"
    run_embed on_sources 2
    quietly cmake --install "$scratch/on_sources" --prefix "$scratch/installed"
    check_installed
    build_embed on_shared -DCMAKE_PREFIX_PATH="$scratch/moved"
    for ranks in 0 2; do run_embed on_shared "$ranks"; done
    ;;
  *) fail "unknown mode: $mode" ;;
esac
