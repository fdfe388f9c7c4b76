#!/usr/bin/env bash
# Follows README's table of the ten hops of a gradient, and fails unless each can be found in the source:
#
#   | hop | where | what happens |
#   |---|---|---|
#   | 1 | `models/mlp.cc` `forward_backward` | ... |
#
# "where" cites a file and one or more names in backticks. A file may be cited without its ending (`runtime/session` stands
# for session.h and session.cc), a name with its class and parentheses (`Session::close()`).
#
# usage: layering_hops.sh [ROOT]; the exit code 77 says that there is no README yet
set -euo pipefail
cd "${1:-$(dirname "${BASH_SOURCE[0]}")/../..}"

if [[ ! -e README.md ]]; then
  printf 'no README.md yet\n'
  exit 77
fi

problems=0
problem() {
  printf 'README.md: %s\n' "$*"
  problems=$((problems + 1))
}

# Prints the hops, one per line: its number, then what stands in backticks in the column "where".
hops() {
  awk -F '|' '
    tolower($2) ~ /^ *hop *$/ && tolower($3) ~ /^ *where *$/ { inside = 1; next }
    !/^\|/ { inside = 0 }
    inside && $2 ~ /[0-9]/ {
      line = $2
      n = split($3, piece, "`")
      for (i = 2; i <= n; i += 2) { gsub(/ /, "", piece[i]); line = line " " piece[i] }
      print line
    }' README.md
}

check_hop() {  # NUMBER CITED...
  local hop=$1 cited path name
  shift
  local files=() names=()
  for cited in "$@"; do
    if [[ $cited != */* ]]; then
      names+=("$cited")
      continue
    fi
    local found=()
    for path in "$cited" "$cited".h "$cited".cc "$cited".cu; do
      if [[ -f $path ]]; then found+=("$path"); fi
    done
    if ((${#found[@]} == 0)); then problem "hop $hop: there is no file $cited"; fi
    files+=("${found[@]}")
  done
  if ((${#names[@]} == 0 || ${#files[@]} == 0)); then
    problem "hop $hop: cites no file, or no name, in backticks"
    return
  fi
  for cited in "${names[@]}"; do
    name=${cited%%(*}
    name=${name##*::}
    name=${name##*.}
    grep -qw -- "$name" "${files[@]}" || problem "hop $hop: no $cited in ${files[*]}"
  done
}

count=0
while read -r -a hop; do
  count=$((count + 1))
  if [[ ${hop[0]} != "$count" ]]; then problem "hop ${hop[0]} stands where $count should"; fi
  check_hop "${hop[@]}"
done < <(hops)
if ((count != 10)); then problem "$count hops in a table with the columns 'hop' and 'where' instead of ten"; fi

if ((problems > 0)); then exit 1; fi
printf 'all ten hops can be found\n'
