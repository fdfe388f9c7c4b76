#!/usr/bin/env bash
# Measures all_reduce between two hosts, which are network namespaces of this machine with 1 Gbit/s links (see on_hosts.sh), with one
# rank and with two ranks on each:
#
#     bench/two_hosts.sh [BUILD]            all of it; BUILD is build/ if not given
#     bench/two_hosts.sh BUILD ratio|session|bytes|idle...
#
# ratio     against MPI_Allreduce, by calling the backend; session: the same through a session
# bytes     what each host's interface sends, over what a ring over the hosts would carry
# idle      what a session costs that does nothing
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=${1:-$here/../build}
shift || true
(($# > 0)) || set -- ratio session bytes idle
bench=$build/bench/kolo-bench
sent=$(mktemp)
trap 'rm -f "$sent"' EXIT

# The lines of kolo-bench that hold figures.
figures() { sed -n '/^#.*ratio/p; /^ *[0-9]/p; /rank/p' | grep -v Rank; }

for slots in 1,1 2,2; do
  for what; do
    printf '\n%s, %s ranks on the hosts\n' "$what" "$slots"
    case $what in
      ratio) "$here"/on_hosts.sh --rate 1gbit "$slots" "$bench" all_reduce --direct -b 1M -e 64M -f 4 -n 8 -w 1 --compare mpi | figures ;;
      session) "$here"/on_hosts.sh --rate 1gbit "$slots" "$bench" all_reduce -b 1M -e 16M -f 4 -n 12 -w 2 --compare mpi | figures ;;
      bytes)
        operations=20 bytes=$((16 << 20))
        "$here"/on_hosts.sh --rate 1gbit --sent "$sent" "$slots" \
          "$bench" all_reduce --direct --placement in -b $bytes -e $bytes -n $operations -w 0 -c 0 >/dev/null
        awk -v all=$((operations * bytes)) '{ printf "host %d sent %d bytes, %.3f of the ring\n", NR - 1, $1, $1 / all }' "$sent"  # 2(H-1)/H is 1
        ;;
      idle) "$here"/on_hosts.sh "$slots" "$bench" all_reduce --idle 10 | grep -v '^#  Rank' ;;
      *) printf 'two_hosts.sh: there is nothing called %s to measure\n' "$what" >&2; exit 64 ;;
    esac
  done
done
