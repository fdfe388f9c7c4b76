#!/bin/bash
# Whole jobs whose sessions adopt memory by a fake libxpmem.so.0.
#
# usage: fake_xpmem_jobs_test.sh USED COMMAND...    USED: yes or no: whether the job is to attach memory
#
# The job must succeed, and leave nothing shown or attached. LD_LIBRARY_PATH names the fake's folder, or does not.
set -euo pipefail
used=$1
shift
FAKE_XPMEM_FOLDER=$(mktemp -d)
export FAKE_XPMEM_FOLDER
trap 'rm -rf "$FAKE_XPMEM_FOLDER"' EXIT
"$@"
cd "$FAKE_XPMEM_FOLDER"
left=$(find . -type f ! -name 'counts.*')
[[ -z $left ]] || { echo "still shown at the end: $left"; exit 1; }
counts=$(cat counts.* 2>/dev/null || true)
echo "${counts:-no rank has used it}"
awk -v used="$used" '
  $2 != $4 || $6 != $8 || $10 != $12 { print "not all was given back: " $0; bad = 1 }
  { large += $14 }
  END { if ((used == "yes") != (large > 0)) { print large + 0 " tensors were attached"; bad = 1 }; exit bad }
' <<<"$counts"
