#!/usr/bin/env bash
# What bench/on_hosts.sh leaves behind, however it ends: nothing. hosts_test.sh ON_HOSTS
set -uo pipefail
on_hosts=$1
mark=kolo-hosts-$$  # in the command lines of what runs on the hosts
fail() {
  printf 'FAILED: %s\n' "$*"
  exit 1
}
remains() {
  ip -o link | grep -oE ' (switch|port|try)[0-9]+[@:]'
  find /run/netns /dev/shm /tmp -maxdepth 1 -name '*host[01]*' 2>/dev/null
  pgrep -af "$mark"
}
ends() {  # within a second or two
  for _ in $(seq 40); do
    [[ -z $(remains) ]] && return
    sleep 0.1
  done
  fail "$1 left something behind: $(remains)"
}

command -v ip >/dev/null || { echo 'skipped: there is no ip (iproute2)'; exit 77; }
text=$("$on_hosts" 2,1 sh -c 'hostname; exit 3')
status=$?
((status == 77)) && { echo "$text"; exit 77; }
((status == 3)) || fail "the exit code of a job that ended with 3 is $status"
[[ $(grep -c '^host0$' <<<"$text") == 2 && $(grep -c '^host1$' <<<"$text") == 1 ]] || fail "2 ranks on host0 and 1 on host1 expected: $text"
ends 'a job that failed'

for signal in TERM KILL; do
  "$on_hosts" 1,1 sh -c "sleep 1000; : $mark" >/dev/null 2>&1 &
  script=$!
  for _ in $(seq 100); do
    (($(pgrep -cf "sleep 1000; : $mark") >= 4)) && break
    sleep 0.1
  done
  (($(pgrep -cf "sleep 1000; : $mark") >= 4)) || fail 'the job did not start'
  kill -"$signal" $script
  wait $script 2>/dev/null
  ends "a script that got SIG$signal"
done
echo 'nothing is left behind'
