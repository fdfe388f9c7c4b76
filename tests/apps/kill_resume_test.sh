#!/usr/bin/env bash
# Kills a run of two ranks that write a checkpoint after every step, and evaluate every other one, at some moment, and resumes it; again and
# again, until it has come to its end. Only the newest checkpoint and the best one are kept. None that was complete may ever be lost or damaged;
# losses, those of evaluations, too, and parameters must be those of a run that nobody disturbed, and so must be the best checkpoint.
#
# usage: kill_resume_test.sh KOLO_TRAIN MPIRUN [TRIES [INSIDE [SEED]]]
#
# Of three times one kills all ranks, one a single rank, and one mpirun: the ranks have to notice.
#
#   TRIES   how many times to kill (default: 100); the run is made long enough for them
#   INSIDE  fail unless this many of them were in the middle of writing a checkpoint (default: 10)
#   SEED    of the moments (default: a new one, which is printed)
set -euo pipefail
program=$1 mpirun=$2 tries=${3:-100} inside_wanted=${4:-10} seed=${5:-$((RANDOM))}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 ASAN_OPTIONS=detect_leaks=0
RANDOM=$seed
printf 'seed %d\n' "$seed"

fail() {
  printf 'kill_resume_test: %s (seed %d)\n' "$*" "$seed" >&2
  tail -n 20 "$folder/out" >&2
  exit 1
}

# The model is large enough for a write to take about as long as a step.
flags=(--model mlp --sizes 784,256,10 --optimizer adamw --batch 256 --seed 3 --lr 1e-3 --eval-every 2 --eval-batches all)
train() {  # FLAG...
  exec "$mpirun" --oversubscribe -np 2 "$program" "${flags[@]}" "$@"
}
train_on() {  # FLAG...
  train --checkpoint "$folder/checkpoints" --every 1 --keep 1 --resume --log "$folder/killed.jsonl" "$@"
}

# Steps of the newest complete checkpoint; -1 if there is none.
newest() {
  local last
  last=$(find "$folder/checkpoints" -maxdepth 1 -name 'step-*' 2>/dev/null | sort | tail -n 1)
  if [[ -z $last ]]; then echo -1; else echo $((10#${last##*step-})); fi
}

resumed_step() { sed -n 's/^resume    from step \([0-9]*\) .*/\1/p' "$folder/out"; }

# Step and loss of each step and evaluation, without what depends on the clock.
losses() { grep -oE '"event":"(step|eval)","step":[0-9]*,"loss":[^,]*' "$1"; }

inside=0 before=-1 steps=100000
for ((try = 1; try <= tries; ++try)); do
  : >"$folder/out"  # that of the try before would look as if this one had come as far
  train_on --steps $steps >>"$folder/out" 2>&1 &
  launcher=$!
  while ! grep -q '^resume ' "$folder/out" && kill -0 $launcher 2>/dev/null; do sleep 0.01; done
  sleep "$(awk -v n=$((RANDOM % 600)) 'BEGIN { print n / 1000 }')"
  seen=$(newest)
  read -ra ranks <<<"$(pgrep -P $launcher | tr '\n' ' ' || true)"
  ((${#ranks[@]} > 0)) || fail "try $try: the run ended by itself"
  case $((try % 3)) in
    0) kill -9 $launcher ;;
    1) kill -9 "${ranks[@]}" ;;
    2) kill -9 "${ranks[RANDOM % ${#ranks[@]}]}" ;;
  esac
  wait $launcher 2>/dev/null || true
  if grep -q 'damaged\|lost' "$folder/out"; then fail "try $try: a checkpoint was damaged or lost"; fi
  from=$(resumed_step)
  if ((before >= 0)) && ((${from:--1} < before)); then fail "try $try: step $before was complete, and step ${from:-0} was resumed"; fi
  if compgen -G "$folder/checkpoints/.writing-step-*" >/dev/null; then inside=$((inside + 1)); fi
  before=$(newest)
  ((before >= seen)) || fail "try $try: step $seen was complete, and step $before is the newest"
done
for rank in "${ranks[@]}"; do  # their launcher may be gone, and they go on
  while kill -0 "$rank" 2>/dev/null; do sleep 0.05; done
done
before=$(newest)
((before > 0)) || fail "no checkpoint was complete in $tries tries"

# The rest of the way, a few steps on, and the same way without a stop.
steps=$((before + 3))
(train_on --steps $steps --save "$folder/killed.safetensors") >"$folder/out" 2>&1 || fail "the last resume failed"
if grep -q 'damaged' "$folder/out"; then fail "the last checkpoint was damaged"; fi
(train --steps $steps --save "$folder/straight.safetensors" --log "$folder/straight.jsonl") >"$folder/out" 2>&1 ||
  fail "the run without a stop failed"
cmp "$folder/killed.safetensors" "$folder/straight.safetensors" >&2 || fail "the parameters differ from those of a run without a stop"
diff <(losses "$folder/killed.jsonl") <(losses "$folder/straight.jsonl") >&2 || fail "the losses differ from those of a run without a stop"
[[ $(losses "$folder/killed.jsonl" | grep -c step\",) == "$steps" ]] || fail "the log does not have $steps steps"
lowest=$(sed -nE 's/.*"event":"eval","step":([0-9]*),"loss":([^,]*),.*/\2 \1/p' "$folder/straight.jsonl" | sort -g | sed -n 1p)
best=$(printf '%s/checkpoints/step-%09d' "$folder" $((${lowest#* } + 1)))
[[ -e $best ]] || fail "the lowest loss was behind step ${lowest#* }, and there is no $best"
((inside >= inside_wanted)) || fail "only $inside of $tries kills were inside a write"
printf 'killed %d times within %d steps, %d of them inside a write: nothing was lost, losses and parameters are the same\n' \
  "$tries" "$steps" "$inside"
