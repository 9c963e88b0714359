#!/usr/bin/env bash
# Trains and scores the models of the results tables in docs/results.md, on the CPU.
#
#     examples/multi30k.sh SETTING [OPTIONS of train...]
#
# SETTING is en-de, de-en or en-fr (raw text, our BPE), or bpe10k (lower-cased, tokenized, joint BPE
# of 10,000 merges: the files of the published 41.02 BLEU). KERAS_TRANSFORMER_DATA is the folder
# with `multi30k/`: train, val and test_2016_flickr, `.en.gz`, `.de.gz` and `.fr.gz`, from
# github.com/multi30k/dataset, and bpe10k.*, the files of data/multi30k-en-de/ in
# github.com/LividWo/Revisit-MMT, packed: `gzip -c train.en > multi30k/bpe10k.train.en.gz`.
set -euo pipefail

setting="${1:?usage: multi30k.sh en-de|de-en|en-fr|bpe10k [OPTIONS of train...]}"
data="${KERAS_TRANSFORMER_DATA:?set KERAS_TRANSFORMER_DATA to the folder that holds multi30k/}/multi30k"
output="runs/multi30k-$setting"
regularized=(--preset tiny --attention-dropout 0.1 --activation-dropout 0.1 --max-steps 100000
  --bleu-every 5 --average-windows 5,10,15,20 "${@:2}")
# On Intel's CPUs with AMX and AMD's (with clzero) with AVX512-BF16, bfloat16 is faster.
if grep -qsE 'amx_bf16|avx512_bf16.*clzero' /proc/cpuinfo; then regularized+=(--mixed-precision); fi

case "$setting" in
  bpe10k)
    keras-transformer train --output "$output" --vocabulary-type subword "${regularized[@]}" \
      --source "$data/bpe10k.train.en.gz" --target "$data/bpe10k.train.de.gz" \
      --valid-source "$data/bpe10k.valid.en.gz" --valid-target "$data/bpe10k.valid.de.gz" \
      --max-minutes "${MINUTES:-110}"
    # The text is already tokenized and lower-cased: BLEU uses its tokens, with subwords joined.
    keras-transformer evaluate --model "$output" \
      --source "$data/bpe10k.test.2016.en.gz" --reference "$data/bpe10k.test.2016.de.gz"
    ;;
  en-de | de-en | en-fr)
    source="${setting%-*}" target="${setting#*-}"
    keras-transformer train --output "$output" --vocab-size 8000 \
      "${regularized[@]}" --bleu-lowercase \
      --source "$data/train.$source.gz" --target "$data/train.$target.gz" \
      --valid-source "$data/val.$source.gz" --valid-target "$data/val.$target.gz" \
      --max-minutes "${MINUTES:-110}"
    keras-transformer evaluate --model "$output" --lowercase \
      --source "$data/test_2016_flickr.$source.gz" \
      --reference "$data/test_2016_flickr.$target.gz"
    ;;
  *)
    echo "multi30k.sh: no such setting: $setting" >&2
    exit 2
    ;;
esac
