#!/usr/bin/env bash
# Tests layering_test.sh and layering_hops.sh: both accept a sound tree, and find each violation planted in it.
set -euo pipefail
tests=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
checks=0
failures=0

# Makes a small sound tree.
fresh() {
  rm -rf "${tree:?}"/*
  mkdir -p "$tree"/{runtime/include/kolo,ops,models/data,apps/embed,bench,tests}
  cd "$tree"
  printf '#include <vector>\n#include <kolo/tensor.h>\n' >runtime/include/kolo/session.h
  printf '#include <mpi.h>\n' | tee runtime/include/kolo/mpi.h >runtime/include/kolo/kolo_c_mpi.h
  printf '#include <stdint.h>\n' >runtime/include/kolo/kolo_c_base.h
  printf '#include "ops/host/region.h"\n#include <kolo/session.h>\n#include <fmt/format.h>\nvoid submit();\n' >runtime/session/session.cc
  printf '#include <kolo/error.h>\n#include "unique.h"\n#if X\n#endif\n' >ops/host/region.h
  printf '#pragma once\n' >runtime/include/kolo/detail/unique.h
  printf '#include "models/data/idx.h"\n#include <kolo/reduce_fn.h>\n#include <zlib.h>\nvoid backward();\n' >models/mlp.cc
  printf '#pragma once\n' >models/data/idx.h
  printf '#include "models/mlp.h"\n#include <kolo/kolo.h>\n' >apps/train.cc
  printf '#include <kolo/mpi.h>\n' >apps/embed/embed.cc
  printf '#include "ops/host/region.h"\n#include <mpi.h>\n' >bench/bench.cc
  printf '#include "runtime/session.h"\n#include "tests/fixture.h"\n#define TEST_ONLY\n' >tests/runtime/session/session_test.cc
  seq 400 | sed 's|^|// |' >runtime/long.cc
  seq 900 | sed 's|^|// |' >ops/half_table.h
  { printf '# Readme\n\n| hop | where | what |\n|---|---|---|\n'
    for hop in 1 2 3 4 5; do printf '| %d | `models/mlp` `backward` | words |\n' "$hop"; done
    for hop in 6 7 8 9 10; do printf '| %d | `runtime/session/session.cc`, `Session::submit()` | words |\n' "$hop"; done
    printf '\nThe end.\n'; } >README.md
}

# expect SCRIPT TEXT: SCRIPT fails on the tree, with TEXT in its output; with the empty text it succeeds.
expect() {
  local output status=0
  checks=$((checks + 1))
  output=$("$tests/$1" "$tree" 2>&1) || status=$?
  if [[ -z $2 && $status != 0 ]] || [[ -n $2 && ($status != 1 || $output != *"$2"*) ]]; then
    printf 'FAILED: %s should have %s but exits with %d and says:\n%s\n' \
      "$1" "${2:+failed with \"$2\",}${2:-passed}" "$status" "$output"
    failures=$((failures + 1))
  fi
}

# plant FILE LINE TEXT: with LINE added to FILE, layering_test.sh fails with TEXT.
plant() {
  fresh
  printf '%s\n' "$2" >>"$1"
  expect layering_test.sh "$3"
}

fresh
expect layering_test.sh ''
expect layering_hops.sh ''

plant ops/host/region.h '#include "runtime/session.h"' 'ops/host/region.h:5: ops/ must not include runtime/session.h'
plant ops/host/region.h '  #  include <runtime/session.h>' 'ops/ must not include runtime/session.h'
plant ops/host/region.h '#include <kolo/session.h>' 'ops/ must not include kolo/session.h'
plant ops/host/region.h '#include "../runtime/session.h"' 'by a relative path'
plant ops/host/region.h '#include HEADER' 'cannot read this #include'
plant runtime/session/session.cc '#include "models/mlp.h"' 'runtime/ must not include models/mlp.h'
plant runtime/session/session.cc '#include "tests/fixture.h"' 'runtime/ must not include tests/fixture.h'
plant runtime/session/session.cc '#include "bench/bench.h"' 'runtime/ must not include bench/bench.h'
plant runtime/include/kolo/session.h '#include "ops/host/region.h"' 'runtime/include/kolo/ must not include ops/host/region.h'
plant runtime/include/kolo/session.h '#include <mpi.h>' 'a public header includes only'
plant runtime/include/kolo/session.h '#include <stdint.h>' 'a public header includes only'
plant runtime/include/kolo/kolo_c_base.h '#include <mpi.h>' 'a public header includes only'
plant runtime/include/kolo/session.h '#include <fmt/format.h>' 'a public header includes only'
plant models/mlp.cc '#include <kolo/session.h>' 'models/ must not include kolo/session.h'
plant models/data/idx.h '#include <mpi.h>' 'models/ must not include mpi.h'
plant models/mlp.cc '#include "ops/kernels/reduce.h"' 'models/ must not include ops/kernels/reduce.h'
plant apps/train.cc '#include "ops/host/region.h"' 'apps/ must not include ops/host/region.h'
plant apps/train.cc '#include "runtime/session.h"' 'apps/ must not include runtime/session.h'
plant apps/embed/embed.cc '#include "models/mlp.h"' 'apps/embed/ must not include models/mlp.h'
plant bench/bench.cc '#include "runtime/session.h"' 'bench/ must not include runtime/session.h'
plant bench/bench.cc '#include "apps/train.h"' 'bench/ must not include apps/train.h'
plant runtime/long.cc '// one more' 'runtime/long.cc:401: more than 400 lines'
plant runtime/session/session.cc '#ifdef X' 'conditional compilation'
plant apps/train.cc '#if defined(X)' 'conditional compilation'
plant ops/host/region.h '#define MIN(a, b) a' 'a macro'
plant models/mlp.cc "// TO""DO: more" 'does not belong'
plant README.md "This is a place""holder." 'README.md:17: does not belong'
plant tests/run "cd /wo""rk/main" 'does not belong'
plant CMakeLists.txt "# mirror: debian"".org" 'does not belong'

hop() {  # README's row for hop 3 becomes $1, and layering_hops.sh fails with $2
  fresh
  sed -i "s/^| 3 .*/$1/" README.md
  expect layering_hops.sh "$2"
}
hop '| 3 | `models\/lost` `backward` | words |' 'hop 3: there is no file models/lost'
hop '| 3 | `models\/mlp` `forward` | words |' 'hop 3: no forward in models/mlp.cc'
hop '| 3 | `models\/mlp` `back` | words |' 'hop 3: no back in models/mlp.cc'
hop '| 3 | `models\/mlp` | words |' 'hop 3: cites no file, or no name'
hop '| 4 | `models\/mlp` `backward` | words |' 'hop 4 stands where 3 should'
hop '| words' '9 hops'
fresh
printf '# Readme\n' >README.md
expect layering_hops.sh '0 hops'

printf '%d checks, %d failures\n' "$checks" "$failures"
if ((failures > 0)); then exit 1; fi
