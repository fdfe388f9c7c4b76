#!/usr/bin/env bash
# Tests layering_test.py and layering_hops.py: both accept a sound tree, and find each violation planted in it.
set -euo pipefail
tests=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
checks=0
failures=0

# Makes a small sound tree with the real table of rooms.
fresh() {
  rm -rf "${tree:?}"/*
  cd "$tree"
  mkdir -p runtime/{include/kolo/detail,types,operation,control,negotiation,session} ops/host ops/local models/{data,util} apps/{embed,train/options} \
    bench/kolo_bench/report tests/{repository,runtime/session}
  cp "$tests/rooms.txt" tests/repository/
  printf '#include <vector>\n#include <kolo/tensor.h>\nnamespace kolo {\nclass Session {\n public:\n  void close();\n};\n}\n' >runtime/include/kolo/session.h
  printf '#include <mpi.h>\n' | tee runtime/include/kolo/mpi.h >runtime/include/kolo/kolo_c_mpi.h
  printf '#include <stdint.h>\n' >runtime/include/kolo/kolo_c_base.h
  printf '#pragma once\n' | tee runtime/include/kolo/detail/unique.h runtime/types/rank_set.h runtime/control/{wire,channel}.h ops/host/region.h >models/data/idx.h
  printf '#include <kolo/error.h>\n#include "unique.h"\n#if X\n#endif\n' >>ops/host/region.h
  printf '#include "runtime/operation/request.h"\n#include <kolo/session.h>\n#include <fmt/format.h>\nvoid submit() {\n  start(1);\n}\n' >runtime/session/session.cc
  printf '#include "rank_set.h"\n#include "runtime/types/rank_set.h"\n#include "runtime/control/wire.h"\n' >runtime/negotiation/agree.cc
  printf '#include "runtime/types/rank_set.h"\nvoid start(int);\n' >runtime/operation/request.h
  printf 'void start(int) {\n  backward();\n}\n' >runtime/operation/request.cc
  printf '#include "models/data/idx.h"\n#include <kolo/reduce_fn.h>\n#include <zlib.h>\nvoid backward() {\n  start(2), submit();\n}\n' >models/mlp.cc
  printf '#include "models/data/idx.h"\n#include "apps/train/options/flags.h"\n#include <kolo/kolo.h>\n' >apps/train/train.cc
  printf '#pragma once\n' >apps/train/options/flags.h
  printf '#include <kolo/mpi.h>\n' >apps/embed/embed.cc
  printf '#include "ops/host/region.h"\n#include "bench/kolo_bench/report/result.h"\n#include <mpi.h>\n' >bench/kolo_bench/main.cc
  printf '#define TEST_ONLY\n' >tests/runtime/session/session_test.cc
  seq 400 | sed 's|^|// |' >runtime/session/long.cc
  seq 900 | sed 's|^|// |' >ops/half_table.h
  { printf '# Readme\n\n| hop | where | what |\n|---|---|---|\n'
    for hop in 1 3 5 7 9; do printf '| %d | `models/mlp` `backward` | words |\n' "$hop"
      printf '| %d | `runtime/session/session.cc`, `Session::submit()` | `start` hands to `backward` |\n' $((hop + 1)); done
    printf '\nThe end.\n'; } >README.md
}

# compile FILE TEXT: an object file of that source, which the list of compile commands names.
compile() {
  local object=${1//\//_}.o
  printf '%b' "$2" >"$tree/$1"
  g++ -std=c++20 -I "$tree/runtime/include" -I "$tree" -c "$tree/$1" -o "$tree/build/$object"
  printf '%s{"directory": "%s", "command": "g++ -o %s -c %s", "file": "%s"}\n' \
    "${separator-}" "$tree/build" "$object" "$tree/$1" "$tree/$1" >>"$tree/build/list"
  separator=,
  { printf '[\n'; cat "$tree/build/list"; printf ']\n'; } >"$tree/build/compile_commands.json"
}

# A sound tree with object files: what a room may open, what is public, and what is inline is used from afar.
fresh_objects() {
  fresh
  mkdir "$tree/build"
  separator=
  printf '#pragma once\n' >runtime/include/kolo/tensor.h
  printf '#pragma once\nnamespace kolo {\nstruct Local {\n  int size() { return 1; }\n  void start();\n};\nvoid start_local(int);\n}\n' >ops/local/local.h
  printf '#pragma once\nnamespace kolo {\nvoid put_byte(int);\n}\n' >runtime/control/wire.h
  compile ops/host/region.cc 'namespace kolo { void map_region(int) {} }\n'
  compile ops/local/local.cc '#include "ops/local/local.h"\nnamespace kolo {\nvoid map_region(int);\nvoid Local::start() {\n  map_region(2);\n}\nvoid start_local(int) {}\n}\n'
  compile runtime/control/wire.cc 'namespace kolo {\nvoid put_byte(int) {}\nvoid open_socket(int) {}\nvoid map_region(int);\nvoid use() {\n  map_region(1);\n}\n}\n'
  compile runtime/session/close.cc '#include <kolo/session.h>\nvoid kolo::Session::close() {}\n'
  compile runtime/operation/use.cc '#include <kolo/session.h>\nvoid finish(kolo::Session& session) {\n  session.close();\n}\n'
}

# expect TEXT COMMAND...: COMMAND fails with TEXT in its output; with the empty text it succeeds.
expect() {
  local text=$1 output status=0
  shift
  checks=$((checks + 1))
  output=$("$@" 2>&1) || status=$?
  if [[ -z $text && $status != 0 ]] || [[ -n $text && ($status != 1 || $output != *"$text"*) ]]; then
    printf 'FAILED: %s should have %s but exits with %d and says:\n%s\n' \
      "$*" "${text:+failed with \"$text\",}${text:-passed}" "$status" "$output"
    failures=$((failures + 1))
  fi
}
layering() { expect "$1" "$tests/layering_test.py" "$tree" "${@:2}"; }
hops() { expect "$1" "$tests/layering_hops.py" "$tree"; }

# plant FILE LINE TEXT: with LINE added to FILE, layering_test.py fails with TEXT.
plant() {
  fresh
  mkdir -p "$(dirname "$1")"
  printf '%s\n' "$2" >>"$1"
  layering "$3"
}

fresh
layering ''
hops ''

plant ops/host/region.h '#include "runtime/session/session.h"' 'ops/host/region.h:6: ops/host may not include runtime/session/session.h'
plant ops/host/region.h '  #  include <runtime/session/session.h>' 'ops/host may not include runtime/session/session.h'
plant ops/host/region.h '#include "ops/local/local.h"' 'ops/host may not include ops/local/local.h'
plant ops/host/region.h '#include <kolo/session.h>' 'ops/host may not include <kolo/session.h>'
plant ops/host/region.h '#include <mpi.h>' 'ops/host may not include <mpi.h>'
plant ops/host/region.h '#include <cuda_runtime.h>' 'ops/host may not include <cuda_runtime.h>'
plant ops/host/region.h '#include <dlfcn.h>' 'ops/host/xpmem.cc, ops/nccl/nccl.cc, runtime/world/no_mpi.cc open libraries'
plant ops/host/region.h '#include "../region.h"' 'by a relative path'
plant ops/host/region.h '#include HEADER' 'cannot read this #include'
plant runtime/session/session.cc '#include "models/mlp.h"' 'runtime/session may not include models/mlp.h'
plant runtime/session/session.cc '#include "tests/fixture.h"' 'runtime/session may not include tests/fixture.h'
plant runtime/negotiation/agree.cc '#include "runtime/control/channel.h"' 'runtime/negotiation may not include runtime/control/channel.h'
plant runtime/operation/request.h '#include "runtime/session/names.h"' 'runtime/operation may not include runtime/session/names.h'
plant runtime/include/kolo/session.h '#include "ops/host/region.h"' 'runtime/include/kolo may not include ops/host/region.h'
plant runtime/include/kolo/session.h '#include <mpi.h>' 'runtime/include/kolo may not include <mpi.h>'
plant runtime/include/kolo/session.h '#include <stdint.h>' 'a public header includes only'
plant runtime/include/kolo/kolo_c_base.h '#include <mpi.h>' 'runtime/include/kolo may not include <mpi.h>'
plant runtime/include/kolo/session.h '#include <fmt/format.h>' 'a public header includes only'
plant models/mlp.cc '#include <kolo/session.h>' 'models may not include <kolo/session.h>'
plant models/data/idx.h '#include <mpi.h>' 'models/data may not include <mpi.h>'
plant models/data/idx.h '#include "models/mlp.h"' 'models/data may not include models/mlp.h'
plant models/mlp.cc '#include "ops/kernels/reduce.h"' 'models may not include ops/kernels/reduce.h'
plant apps/train/train.cc '#include "runtime/types/rank_set.h"' 'apps/train may not include runtime/types/rank_set.h'
plant apps/embed/embed.cc '#include "models/util/words.h"' 'apps/embed may not include models/util/words.h'
plant bench/kolo_bench/main.cc '#include "apps/train/train.h"' 'bench/kolo_bench may not include apps/train/train.h'
plant runtime/lost.h '#pragma once' 'runtime/lost.h: is in no room'
plant ops/attic/old.h '#pragma once' 'ops/attic/old.h: is in no room'
plant tests/repository/rooms.txt 'runtime/hall  runtime/tower' 'runtime/hall opens runtime/tower, which is no room above it'
plant tests/repository/rooms.txt $'runtime/hall\nruntime/tower' 'runtime has 12 rooms'
plant runtime/session/long.cc '// one more' 'runtime/session/long.cc:401: more than 400 lines'
plant runtime/session/session.cc '#ifdef X' 'conditional compilation'
plant apps/train/train.cc '#if defined(X)' 'conditional compilation'
plant ops/host/region.h '#define MIN(a, b) a' 'a macro'
plant models/mlp.cc "// TO""DO: more" 'does not belong'
plant README.md "This is a place""holder." 'README.md:17: does not belong'
plant tests/run "cd /wo""rk/main" 'does not belong'
plant CMakeLists.txt "# mirror: debian"".org" 'does not belong'

fresh
"$tests/layering_test.py" --rows models | sed '1i | room | its rule | may open |\n|---|---|---|' >models/README.md
layering ''
sed -i 's/`models\/layers` `models\/checkpoint`/`models\/checkpoint`/' models/README.md
layering 'models/llama may open `models/checkpoint`'
sed -i '/models.llama/d' models/README.md
layering 'models/README.md: shows no row of models/llama'

fresh_objects
layering '' build
# link FILE TEXT SAID: with a room's object file compiled from TEXT, layering_test.py fails with SAID.
link() {
  fresh_objects
  compile "$1" "$2"
  layering "$3" build
}
link runtime/operation/reach.cc 'namespace kolo {\nvoid start_local(int);\nvoid reach() {\n  start_local(1);\n}\n}\n' \
  'runtime/operation: uses the symbol kolo::start_local(int) of ops/local'
link runtime/session/reach.cc '#include <kolo/tensor.h>\nnamespace kolo {\nstruct Local {\n  void start();\n};\nvoid reach() {\n  Local().start();\n}\n}\n' \
  'runtime/session: uses the symbol kolo::Local::start() of ops/local'
link runtime/negotiation/reach.cc 'namespace kolo {\nvoid open_socket(int);\nvoid reach() {\n  open_socket(1);\n}\n}\n' \
  'runtime/negotiation: uses the symbol kolo::open_socket(int) of runtime/control'
link ops/host/reach.cc 'extern "C" int MPI_Init(int*, char***);\nvoid reach() {\n  MPI_Init(0, 0);\n}\n' 'ops/host: uses the symbol MPI_Init of <mpi.h>'
link runtime/negotiation/reach.cc '#include "runtime/control/wire.h"\nvoid reach() {\n  kolo::put_byte(1);\n}\n' ''
fresh_objects
printf '[]' >build/compile_commands.json
layering 'no object files to look at' build

# hop ROW SAID: with ROW for hop 3, layering_hops.py fails with SAID.
hop() {
  fresh
  sed -i "s/^| 3 .*/$1/" README.md
  hops "$2"
}
hop '| 3 | `models\/lost` `backward` | words |' 'hop 3: there is no file models/lost'
hop '| 3 | `models\/mlp` `forward` | words |' 'hop 3: forward is not defined in models/mlp.cc'
hop '| 3 | `models\/mlp` `submit` | words |' 'hop 3: submit is not defined in models/mlp.cc'
hop '| 3 | `models\/mlp` | words |' 'hop 3: cites no file, or no function'
hop '| 4 | `models\/mlp` `backward` | words |' 'has the hops 1 2 4 4 5'
hop '| words' 'has the hops 1 2 4 5'
fresh
sed -i 's/submit();/finish();/' models/mlp.cc
hops 'hop 1 does not lead to hop 2: it mentions none of submit'
fresh
sed -i 's/start/begin/' runtime/session/session.cc
hops 'hop 2 does not lead to hop 3'
fresh
cp README.md runtime/
hops '2 tables of hops'
rm README.md
hops ''
rm runtime/README.md
hops '0 tables of hops'

printf '%d checks, %d failures\n' "$checks" "$failures"
if ((failures > 0)); then exit 1; fi
