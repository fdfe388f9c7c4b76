#!/usr/bin/env bash
# Kills a run that writes a checkpoint after every step, at some moment, and resumes it; again and again, until it has come to its
# end. No checkpoint that was complete may ever be lost or damaged, and the end must be that of a run that nobody disturbed.
#
# usage: kill_resume_test.sh KOLO_TRAIN MPIRUN [TRIES [INSIDE]]
#
# Every third time it is mpirun that is killed, and the ranks have to notice.
#
#   TRIES   how many times to kill (default: 50); the run is made long enough for them
#   INSIDE  fail unless this many of them were in the middle of writing a checkpoint (default: 10)
set -euo pipefail
program=$1 mpirun=$2 tries=${3:-50} inside_wanted=${4:-10}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 ASAN_OPTIONS=detect_leaks=0

fail() {
  printf 'kill_resume_test: %s\n' "$*" >&2
  tail -n 20 "$folder/out" >&2
  exit 1
}

# The model is large enough for a write to take about as long as a step.
flags=(--model mlp --sizes 784,256,10 --optimizer adamw --batch 256 --seed 3 --lr 1e-3 --eval-every 1000000)
train() {  # RANKS FLAG...
  local ranks=$1
  shift
  exec "$mpirun" --oversubscribe -np "$ranks" "$program" "${flags[@]}" "$@"
}

# Steps of the newest complete checkpoint; -1 if there is none.
newest() {
  local last
  last=$(find "$folder/checkpoints" -maxdepth 1 -name 'step-*' 2>/dev/null | sort | tail -n 1)
  if [[ -z $last ]]; then echo -1; else echo $((10#${last##*step-})); fi
}

resumed_step() { sed -n 's/^resume    from step \([0-9]*\) .*/\1/p' "$folder/out"; }

inside=0 before=-1 steps=100000
for ((try = 1; try <= tries; ++try)); do
  : >"$folder/out"  # that of the try before would look as if this one had come as far
  train 2 --steps $steps --checkpoint "$folder/checkpoints" --every 1 --resume >>"$folder/out" 2>&1 &
  launcher=$!
  while ! grep -q '^resume ' "$folder/out" && kill -0 $launcher 2>/dev/null; do sleep 0.01; done
  sleep "$(awk -v n=$((RANDOM % 600)) 'BEGIN { print n / 1000 }')"
  seen=$(newest)
  ranks=$(pgrep -P $launcher || true)
  [[ -n $ranks ]] || fail "try $try: the run ended by itself"
  if ((try % 3 == 0)); then kill -9 $launcher; else kill -9 $ranks; fi
  wait $launcher 2>/dev/null || true
  if grep -q 'damaged' "$folder/out"; then fail "try $try: a checkpoint was damaged"; fi
  from=$(resumed_step)
  if ((before >= 0)) && ((${from:--1} < before)); then fail "try $try: step $before was complete, and step ${from:-0} was resumed"; fi
  if compgen -G "$folder/checkpoints/.writing-*" >/dev/null; then inside=$((inside + 1)); fi
  before=$(newest)
  ((before >= seen)) || fail "try $try: step $seen was complete, and step $before is the newest"
done
while [[ -n ${ranks:-} ]] && kill -0 $ranks 2>/dev/null; do sleep 0.05; done  # their launcher may be gone, and they go on
before=$(newest)
((before > 0)) || fail "no checkpoint was complete in $tries tries"

# The rest of the way, a few steps on, and the same way without a stop.
steps=$((before + 3))
(train 2 --steps $steps --checkpoint "$folder/checkpoints" --every 1 --resume --save "$folder/killed.safetensors") >"$folder/out" 2>&1 || fail "the last resume failed"
if grep -q 'damaged' "$folder/out"; then fail "the last checkpoint was damaged"; fi
(train 2 --steps $steps --save "$folder/straight.safetensors") >"$folder/out" 2>&1 || fail "the run without a stop failed"
cmp "$folder/killed.safetensors" "$folder/straight.safetensors" >&2 || fail "the parameters differ from those of a run without a stop"
((inside >= inside_wanted)) || fail "only $inside of $tries kills were inside a write"
printf 'killed %d times within %d steps, %d of them inside a write: nothing was lost, the parameters are the same\n' \
  "$tries" "$steps" "$inside"
