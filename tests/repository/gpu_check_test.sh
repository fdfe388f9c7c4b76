#!/usr/bin/env bash
# gpu_check_test.sh SOURCES: tests/gpu_check.sh without a GPU, and with a pretended one and programs that pretend.
set -uo pipefail

sources=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TMPDIR=$work

fail() {
  printf 'gpu_check_test: %s\n' "$*" >&2
  exit 1
}
# check EXIT_CODE ARGUMENT...: what it prints is in $text.
check() {
  local expected=$1 rc=0
  shift
  text=$(bash "$sources/tests/gpu_check.sh" "$@" 2>&1) || rc=$?
  ((rc == expected)) || fail "exit code $rc, not $expected, of gpu_check.sh $*: $text"
}
says() { grep -q -- "$1" <<<"$text" || fail "'$1' is missing: $text"; }

if ! command -v nvidia-smi >/dev/null; then
  check 0
  says '^skipped: this machine has no GPU'
  [[ $(wc -l <<<"$text") == 1 ]] || fail "more than a line: $text"
fi

mkdir -p "$work"/{tools,kolo-gpu/bin}
cat >"$work/tools/nvidia-smi" <<'EOF2'
#!/bin/sh
echo 0
EOF2
cat >"$work/kolo-gpu/run" <<'EOF2'
#!/bin/sh
exec "$@"
EOF2
cat >"$work/kolo-gpu/bin/gpu_smoke" <<'EOF2'
#!/bin/sh
echo '01  FAILED  a context: no memory'
echo '0 ok, 1 FAILED'
exit 1
EOF2
cat >"$work/kolo-gpu/bin/cuda_card_test" <<'EOF2'
#!/bin/sh
echo 'the last words'
exec "${0%/*}/waits" 1000
EOF2
cp "$(command -v sleep)" "$work/kolo-gpu/bin/waits"
cat >"$work/tools/cuda-gdb" <<'EOF2'
#!/bin/sh
echo 'Thread 7 (pretended)'
for i in $(seq 60); do echo "#$i in a function"; done
EOF2
touch "$work/kolo-gpu/about"
chmod +x "$work"/tools/* "$work/kolo-gpu/run" "$work"/kolo-gpu/bin/*
tar -C "$work" -czf "$work/archive.tar.gz" kolo-gpu
PATH=$work/tools:$PATH

check 2
says '^usage: '
check 1 -k archive "$work/missing.tar.gz"
says '^failed   unpack the archive'
OUT=$work/out check 1 -k 'archive|smoke' "$work/archive.tar.gz"
says '^passed   unpack the archive'
says '^failed   smoke .*exit code 1: 01  FAILED  a context: no memory'
grep -q '^failed   smoke' "$work/out/table" || fail 'the table lacks a row'
grep -q '^0 ok, 1 FAILED' "$work/out/log" || fail 'the log lacks the output'
export GPU_CHECK_SECONDS=12
check 1 -k 'archive|models, tests' "$work/archive.tar.gz"
says '^failed   models, tests .*took longer than'
says '    the last words'
says '    --- threads of [0-9]* (.*waits 1000 )'
says '    Thread 7 (pretended)'
says '    #60 in a function'
[[ ! -e $work/out/running ]] || fail 'the log of a step is there twice'
if pgrep -f "$work/kolo-gpu-.*/waits" >/dev/null; then fail 'what hung is still there'; fi
