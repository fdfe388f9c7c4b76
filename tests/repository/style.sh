#!/usr/bin/env bash
# Style: fails if a tracked source is not as clang-format 14 with the repository's .clang-format writes it; if clang-tidy 14 has
# anything to say of the library and the programs, as a build compiles them: some six minutes on two cores where it joins the files of
# a room (build-asan), thrice that where it does not; only `cmake --preset asan` is needed; or if a source of the library that a build
# joins with others does not compile by itself. Skipped where there is no such program.
#
# usage: style.sh format | style.sh tidy BUILD | style.sh units BUILD
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if [[ $1 == units ]]; then
  if [[ ! -d $2/CMakeFiles/kolo.dir/Unity ]]; then exit 0; fi  # each source is compiled by itself already
  read -ra compile < <(sed -nE 's/.*"command": "(.*) -o [^ ]*unity_runtime_world[^ ]* -c .*/\1/p' "$2/compile_commands.json")
  sed -nE 's/^#include "(.*)"/\1/p' "$2"/CMakeFiles/kolo.dir/Unity/*.cxx | xargs -n 4 -P "$(nproc)" "${compile[@]}" -fsyntax-only
  exit
fi
for program in "clang-$1-14" "clang-$1" ''; do
  if [[ -n $program ]] && "$program" --version 2>/dev/null | grep -q 'version 14\.'; then break; fi
done
if [[ -z $program ]]; then
  printf 'skipped: no clang-%s 14 on this machine (apps/setup installs it)\n' "$1"
  exit 77
fi
if [[ $1 == format ]]; then
  git ls-files -z -- '*.h' '*.c' '*.cc' '*.cu' | xargs -0 -n 50 -P 2 "$program" --dry-run --Werror
else
  build=$(realpath "$2")
  sed -nE 's/.*"file": "(.*)".*/\1/p' "$build/compile_commands.json" | grep -v '/tests/' | grep -v '\.cu$' | sort -u |
    xargs -n 1 -P "$(nproc)" "$program" -p "$build" --config-file=.clang-tidy --quiet --warnings-as-errors='*'
fi
