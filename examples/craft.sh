#!/usr/bin/env bash
# Trains and scores the parsers of the results tables in docs/results.md, on the CPU.
#
#     examples/craft.sh SETTING [TREES [OPTIONS of train...]]
#
# SETTING is how trees are written:
#     joined        the brackets around each word are one symbol
#     numbers       each bracket is a symbol; a word is its number
#     placeholders  the same; each word is XX
#     words, tags   the same; a word is itself, or its tag
#     subwords      the same with numbers; the source is BPE
#     large         joined, with a larger model, trained first without R-Drop and then with it
# TREES is the number of training trees (default: all). MINUTES=15 sets the time; the default of
# large is 60, for two cores (on one core, the table's has 110).
# KERAS_TRANSFORMER_DATA is the folder with `treebank/craft.train.trees.gz` and
# `treebank/craft.dev.trees.gz`: the trees of github.com/UCDenver-ccp/CRAFT
# (structural-annotation/treebank/penn/*.tree), one per line. In the tables, 76 articles are for
# training and 10 others for development; another split has other scores.
set -euo pipefail

setting="${1:?usage: craft.sh joined|numbers|placeholders|words|tags|subwords|large [TREES [OPTIONS of train...]]}"
trees="${2:-all}"
data="${KERAS_TRANSFORMER_DATA:?set KERAS_TRANSFORMER_DATA to the folder that holds treebank/}/treebank"
output="runs/craft-$setting"
minutes="${MINUTES:-15}"
options=(--preset parsing_small)

case "$setting" in
  joined) ;;
  numbers) options+=(--emit-numbers) ;;
  placeholders) options+=(--no-emit-numbers) ;;
  words) options+=(--emit-words) ;;
  tags) options+=(--emit-tags) ;;
  subwords) options+=(--vocabulary-type bpe --vocab-size 8000 --emit-numbers) ;;
  large)
    minutes="${MINUTES:-60}"
    options+=(--num-encoder-layers 3 --d-model 192 --intermediate-dim 768 --max-steps 60000)
    ;;
  *)
    echo "craft.sh: no such setting: $setting" >&2
    exit 2
    ;;
esac
# On Intel's CPUs with AMX and AMD's (with clzero) with AVX512-BF16, bfloat16 is faster.
if grep -qsE 'amx_bf16|avx512_bf16.*clzero' /proc/cpuinfo; then options+=(--mixed-precision); fi
if [[ "$trees" != all ]]; then
  options+=(--limit-trees "$trees")
  output+="-$trees"
fi
more=(--f1-trees 300 "${@:3}")

train() { # OUTPUT MINUTES OPTIONS...
  keras-transformer train --task parsing --output "$1" "${options[@]}" \
    --trees "$data/craft.train.trees.gz" --valid-trees "$data/craft.dev.trees.gz" \
    --checkpoint-every 500 --evaluate-every 1000 --max-minutes "$2" "${@:3}" "${more[@]}"
}

if [[ "$setting" == large ]]; then
  first="$(awk "BEGIN { print $minutes * 5 / 12 }")"
  train "$output-first" "$first" --peak-learning-rate 4e-3
  train "$output" "$(awk "BEGIN { print $minutes - $first }")" --start-from "$output-first" \
    --r-drop 2 --dropout 0.25 --peak-learning-rate 2e-3 --average-windows 5,10
else
  train "$output" "$minutes"
fi
for how in "--beam-size 1" "--beam-size 1 --unconstrained" "--beam-size 8"; do
  echo "== $how =="
  # shellcheck disable=SC2086  # `$how` has several words
  keras-transformer evaluate --task parsing --model "$output" $how \
    --reference "$data/craft.dev.trees.gz"
done
