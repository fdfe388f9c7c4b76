#!/usr/bin/env bash
# Runs clang-tidy 14 over the sources of the library and the programs, as a build compiles them: some six minutes on two cores where
# it joins the files of a room (build-asan), thrice that where it does not. Only `cmake --preset asan` is needed, not the build itself.
# Fails if it has anything to say. Skipped where there is no clang-tidy 14.
#
# usage: tidy.sh BUILD
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=$(realpath "$1")

for tidy in clang-tidy-14 clang-tidy ''; do
  if [[ -n $tidy ]] && "$tidy" --version 2>/dev/null | grep -q 'version 14\.'; then break; fi
done
if [[ -z $tidy ]]; then
  printf 'skipped: no clang-tidy 14 on this machine (apps/setup installs it)\n'
  exit 77
fi
sed -nE 's/.*"file": "(.*)".*/\1/p' "$build/compile_commands.json" | grep -v '/tests/' | grep -v '\.cu$' | sort -u |
  xargs -n 1 -P "$(nproc)" "$tidy" -p "$build" --config-file=.clang-tidy --quiet --warnings-as-errors='*'
