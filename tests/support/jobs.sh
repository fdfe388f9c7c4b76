# What scripts that play whole jobs have in common. $limit: seconds that a job may take.

out=$(mktemp)
trap 'rm -f "$out"' EXIT

fail() {
  printf 'FAILED: %s\n--- output (exit code %s):\n' "$*" "${status:-?}"
  cat "$out"
  exit 1
}

# Runs a command within the time limit; its exit code is in $status, its output in $out.
job() {
  timeout -k 5 "$limit" "$@" </dev/null >"$out" 2>&1
  status=$?
  ((status != 124)) || fail 'the job did not end by itself'
}
exits() { ((status == $1)) || fail "exit code $1 expected"; }
says() { [[ $(grep -cE "$2" "$out") == "$1" ]] || fail "$1 lines expected with: $2"; }
