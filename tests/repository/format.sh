#!/usr/bin/env bash
# Fails unless every tracked source is as clang-format 14 with the repository's .clang-format writes it. Skipped where there is
# no clang-format 14.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

for format in clang-format-14 clang-format ''; do
  if [[ -n $format ]] && "$format" --version 2>/dev/null | grep -q 'version 14\.'; then break; fi
done
if [[ -z $format ]]; then
  printf 'skipped: no clang-format 14 on this machine (apps/setup installs it)\n'
  exit 77
fi
git ls-files -z -- '*.h' '*.c' '*.cc' '*.cu' | xargs -0 -n 50 -P 2 "$format" --dry-run --Werror
