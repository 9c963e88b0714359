#!/usr/bin/env bash
# Trains and scores the models of the section on distillation in docs/training.md, on the CPU.
#
#     examples/distillation.sh
#
# A teacher, `tiny`, translates the English side of its training text. A student, `tiny_deep`,
# learns these translations instead of the German references. For comparison, another student learns
# the references. All three share a vocabulary. MINUTES=20 sets the time of each training.
# KERAS_TRANSFORMER_DATA is the folder with `multi30k/`: train, val and test_2016_flickr, `.en.gz`
# and `.de.gz`, from github.com/multi30k/dataset.
set -euo pipefail

data="${KERAS_TRANSFORMER_DATA:?set KERAS_TRANSFORMER_DATA to the folder that holds multi30k/}/multi30k"
output="runs/distillation"
regularized=(--dropout 0.2 --attention-dropout 0.1 --activation-dropout 0.1
  --optimizer adam --tokens-per-batch 2048 --peak-learning-rate 0.003 --warmup-steps 1000
  --max-steps 100000
  --bleu-every 5 --average-windows 5,10,15,20)
# On Intel's CPUs with AMX and AMD's (with clzero) with AVX512-BF16, bfloat16 is faster.
if grep -qsE 'amx_bf16|avx512_bf16.*clzero' /proc/cpuinfo; then regularized+=(--mixed-precision); fi

train() { # NAME GERMAN OPTIONS...
  keras-transformer train --output "$output/$1" --target "$2" "${@:3}" \
    "${regularized[@]}" --bleu-lowercase --source "$data/train.en.gz" \
    --valid-source "$data/val.en.gz" --valid-target "$data/val.de.gz" \
    --max-minutes "${MINUTES:-20}"
}

train teacher "$data/train.de.gz" --preset tiny --vocab-size 8000
student=(--preset tiny_deep --vocabulary "$output/teacher/tokenizer.model")
train references "$data/train.de.gz" "${student[@]}"
keras-transformer translate --model "$output/teacher" --beam-size 5 \
  --input "$data/train.en.gz" --output "$output/translations.de.gz"
train distilled "$output/translations.de.gz" "${student[@]}"

# The seconds of `evaluate` include compiling the search. With ten copies of the test set, which do
# not change the scores, this is a small part.
for language in en de; do
  for _ in {1..10}; do cat "$data/test_2016_flickr.$language.gz"; done > "$output/test.$language.gz"
done
for model in teacher references distilled; do
  echo "== $model =="
  keras-transformer evaluate --model "$output/$model" --lowercase \
    --source "$output/test.en.gz" --reference "$output/test.de.gz"
done
