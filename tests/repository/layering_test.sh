#!/usr/bin/env bash
# Reads every source file, and fails on an #include that crosses the layers the wrong way, on an oversized file, and on what
# the code's style rules out. Prints one line per violation: FILE:LINE: what is wrong.
#
# usage: layering_test.sh [ROOT]
set -euo pipefail
cd "${1:-$(dirname "${BASH_SOURCE[0]}")/../..}"

# Who may include what. The layer of a file is the first prefix that fits; * stands for any name.
layers='
runtime/include/kolo/  kolo/*
runtime/               kolo/* ops/* runtime/*
ops/                   kolo/* ops/*                                                  but not: kolo/session.h kolo/kolo.h
models/                kolo/tensor.h kolo/device.h kolo/dtype.h kolo/reduce_fn.h models/*   but not: mpi.h
apps/embed/            kolo/* apps/embed/*                                           but not: mpi.h
apps/                  kolo/* models/* apps/*                                        but not: mpi.h
bench/                 kolo/* models/* ops/* bench/*
tests/                 kolo/* ops/* runtime/* models/* apps/* bench/* tests/*
'

sources() {
  local directory
  for directory in runtime ops models apps bench tests; do
    if [[ -d $directory ]]; then find "$directory" -type f -regex '.*\.\(h\|c\|cc\|cu\|cuh\)' -print0; fi
  done | sort -z
}

check_includes() {
  sources | LAYERS=$layers xargs -0 -r awk '
    function violation(text) { printf "%s:%d: %s\n", FILENAME, FNR, text }
    function starts_with(text, prefix) { return substr(text, 1, length(prefix)) == prefix }
    function exists(path,   line, found) { found = (getline line < path) >= 0; close(path); return found }
    function fits(name, patterns,   list, n, i, p) {
      n = split(patterns, list, " ")
      for (i = 1; i <= n; i++) {
        p = list[i]
        if (p == name) return 1
        if (sub(/\*$/, "", p) && starts_with(name, p)) return 1
      }
      return 0
    }
    BEGIN {
      rows = split(ENVIRON["LAYERS"], row, "\n")
      for (i = 1; i <= rows; i++) {
        if (row[i] !~ /[^ ]/) continue
        count++
        split(row[i], halves, "but not:")
        refused[count] = halves[2]
        prefix[count] = halves[1]; sub(/ .*/, "", prefix[count])
        allowed[count] = substr(halves[1], length(prefix[count]) + 1)
      }
    }
    FNR == 1 {
      layer = 0
      for (i = 1; i <= count && !layer; i++) if (starts_with(FILENAME, prefix[i])) layer = i
      directory = FILENAME; sub(/[^\/]*$/, "", directory)
    }
    /^[ \t]*#[ \t]*include/ {
      if (!match($0, /["<][^">]*[">]/)) { violation("cannot read this #include"); next }
      name = substr($0, RSTART + 1, RLENGTH - 2)
      quoted = substr($0, RSTART, 1) == "\""
      if (name ~ /\.\./) { violation("includes by a relative path: " name); next }
      if (quoted && name !~ /\// && exists(directory name)) name = directory name
      ours = name ~ /^(kolo|runtime|ops|models|apps|bench|tests)\//
      if (fits(name, refused[layer]) || (ours && !fits(name, allowed[layer]))) {
        violation(prefix[layer] " must not include " name)
      } else if (prefix[layer] == "runtime/include/kolo/" && !ours && name !~ /^[a-z0-9_]+$/ &&
                 !(name == "mpi.h" && FILENAME ~ /\/kolo\/(kolo_c_)?mpi\.h$/) &&
                 !(name ~ /^std(def|int)\.h$/ && FILENAME ~ /\/kolo\/kolo_c_base\.h$/)) {
        violation("a public header includes only <kolo/...> and the standard library: " name)
      }
    }
    FILENAME ~ /^(runtime|models|apps)\/.*\.(cc|cu)$/ && /^[ \t]*#[ \t]*(if|ifdef|ifndef|elif|else)([ \t(]|$)/ {
      violation("conditional compilation; let the build choose between two files")
    }
    FILENAME !~ /^tests\// && /^[ \t]*#[ \t]*define[ \t]/ { violation("a macro; use a function, a template or a constant") }
    FILENAME !~ /^tests\// && FILENAME !~ /_table\.[a-z]+$/ && FNR == 401 { violation("more than 400 lines") }
  '
}

# Words that say that something is unfinished, or that only make sense on one machine or to one author.
check_words() {
  local unfinished='\b(TO[D]O|FIX[M]E|X[X]X)\b|not (yet )?imple[m]ented|place[h]older|for[ ]now'
  local elsewhere='(^|[^A-Za-z0-9_.}-])/(home|root|work|farm)/|py[p]i\.|debian[.]org|github[u]sercontent|sub-?[a]gent'
  local diary='\b[i]ssue #?[0-9]'
  find . \( -name .git -o -name 'build*' -o -name .cache \) -prune -o -type f ! -name LICENSE -print0 |
    xargs -0 -r grep -InE -i "$unfinished|$elsewhere|$diary" |
    sed -E 's|^\./||; s|^([^:]*:[0-9]*):(.*)|\1: does not belong into the source:\2|' || true
}

violations=$(check_includes && check_words)
if [[ -n $violations ]]; then
  printf '%s\n' "$violations"
  exit 1
fi
printf 'no violations in %d files\n' "$(sources | tr -cd '\0' | wc -c)"
