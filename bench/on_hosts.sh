#!/usr/bin/env bash
# Runs a program under mpirun on several hosts, which are network namespaces of this machine behind one switch:
#
#     on_hosts.sh [--rate RATE] [--sent FILE] SLOTS[,SLOTS...] PROGRAM [ARGUMENT...]
#
# SLOTS    ranks on each host, as in 2,2 or 3,1
# --rate   what each host's link carries, in tc's words: 1gbit
# --sent   writes to FILE how many bytes each host's interface has sent, a line per host
#
# Ends with the job's exit code; with 77, and a line that says why, where namespaces cannot be made: that takes root, `ip`, and `tc` for
# --rate. MPIEXEC names another mpirun. Settings named KOLO_* reach all ranks.
#
# Processes, interfaces, host names and temporary files live in namespaces of their own, which end with this script, even if it is killed:
# nothing is left behind.
set -uo pipefail

skip() {
  printf 'skipped: %s\n' "$*"
  exit 77
}

rate='' sent=''
while [[ ${1:-} == --* ]]; do
  case $1 in
    --rate) rate=$2 ;;
    --sent) sent=$2 ;;
    *) printf 'on_hosts.sh: there is no option %s\n' "$1" >&2; exit 64 ;;
  esac
  shift 2
done

if [[ ${KOLO_ON_HOSTS:-} != inside ]]; then
  ((EUID == 0)) || skip 'making network namespaces takes root'
  command -v ip >/dev/null || skip 'there is no ip (iproute2)'
  [[ -z $rate ]] || command -v tc >/dev/null || skip 'there is no tc (iproute2)'
  apart=(setpriv --pdeathsig KILL unshare --net --pid --mount --uts --fork --kill-child --mount-proc)
  "${apart[@]}" ip link add name try0 type veth peer name try1 >/dev/null 2>&1 || skip 'this machine does not allow network namespaces'
  trap 'exit 143' INT TERM
  KOLO_ON_HOSTS=inside "${apart[@]}" "$0" ${rate:+--rate "$rate"} ${sent:+--sent "$sent"} "$@" &
  wait $!
  exit
fi

unset KOLO_ON_HOSTS
set -e
IFS=, read -ra slots <<<"$1"
shift
mount -t tmpfs none /run
mount -t tmpfs none /dev/shm
mkdir /run/netns /run/tmp
export TMPDIR=/run/tmp
ip link add name switch0 type bridge
ip link set switch0 up
hosts=''
for i in "${!slots[@]}"; do
  ip netns add "host$i"
  ip link add name "port$i" type veth peer name eth0 netns "host$i"
  ip link set "port$i" master switch0 up
  ip -n "host$i" addr add "10.77.0.$((i + 10))/24" dev eth0
  ip -n "host$i" link set eth0 up
  ip -n "host$i" link set lo up
  [[ -z $rate ]] || ip netns exec "host$i" tc qdisc add dev eth0 root tbf rate "$rate" burst 256k latency 50ms
  hosts+="${hosts:+,}10.77.0.$((i + 10)):${slots[i]}"
done

# What mpirun starts a daemon on a host with: host, then words that make up a command line.
cat >/run/on_host <<'END'
#!/bin/sh
name=host$((${1##*.} - 10))
shift
exec ip netns exec "$name" unshare --uts sh -c "hostname $name; $*"
END
chmod +x /run/on_host

settings=()
for name in "${!KOLO_@}"; do settings+=(-x "$name"); done
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
job=("${MPIEXEC:-mpirun}" --bind-to none -H "$hosts" --mca plm_rsh_agent /run/on_host "${settings[@]}" "$@")
status=0
ip netns exec host0 unshare --uts sh -c 'hostname host0; exec "$@"' sh "${job[@]}" </dev/null || status=$?
if [[ -n $sent ]]; then
  for i in "${!slots[@]}"; do ip netns exec "host$i" awk '$1 == "eth0:" { print $10 }' /proc/net/dev; done >"$sent"
fi
exit "$status"
