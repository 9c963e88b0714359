#!/usr/bin/env bash
# Adapts a model of Tatoeba's everyday sentences to the image captions of Multi30k (English to
# German), once with all 29,000 captions and once with 2,000, beside models of the captions alone.
#
#     examples/adapt.sh [OUTPUT]
#
# KERAS_TRANSFORMER_DATA is the folder with `tatoeba/deu-eng.tsv.gz` (tatoeba.org, through
# manythings.org/anki) and `multi30k/`, as for multi30k.sh. OUTPUT is runs/adapt by default.
# GENERAL_MINUTES (15) is the time of the general model, MINUTES (5) that of the others, SEED (1)
# the seed of all.
set -euo pipefail

data="${KERAS_TRANSFORMER_DATA:?set KERAS_TRANSFORMER_DATA to the folder that holds multi30k/}"
output="${1:-runs/adapt}"
text="$output/text"
mkdir -p "$text"
# On Intel's CPUs with AMX and AMD's (with clzero) with AVX512-BF16, bfloat16 is faster.
shared=(--max-steps 100000 --seed "${SEED:-1}")
if grep -qsE 'amx_bf16|avx512_bf16.*clzero' /proc/cpuinfo; then shared+=(--mixed-precision); fi

# An English sentence of Tatoeba has several translations, so it is in one of the three parts only.
python3 - "$data/tatoeba/deu-eng.tsv.gz" "$text" <<'PYTHON'
import gzip, pathlib, random, sys

translations, folder = {}, pathlib.Path(sys.argv[2])
with gzip.open(sys.argv[1], "rt", encoding="utf-8") as file:
    for line in file:
        english, german, *_ = line.rstrip("\n").split("\t")
        translations.setdefault(english, []).append(german)
sentences = sorted(translations)
random.Random(1).shuffle(sentences)
parts = {"valid": sentences[:1000], "test": sentences[1000:2000], "train": sentences[2000:]}
for part, chosen in parts.items():
    pairs = [(a, b) for a in chosen for b in translations[a][: None if part == "train" else 1]]
    for language, lines in zip(("en", "de"), zip(*pairs)):
        (folder / f"{part}.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
PYTHON
for language in en de; do
  gzip -dc "$data/multi30k/train.$language.gz" > "$text/29000.$language"
  head -n 2000 "$text/29000.$language" > "$text/2000.$language"
done

train() { # NAME MINUTES OPTIONS...
  keras-transformer train --output "$output/$1" --max-minutes "$2" "${shared[@]}" "${@:3}"
}
train general "${GENERAL_MINUTES:-15}" --preset tiny --dropout 0.1 --vocab-size 8000 \
  --source "$text/train.en" --target "$text/train.de" \
  --valid-source "$text/valid.en" --valid-target "$text/valid.de" \
  --evaluate-every 1000 --checkpoint-every 250
for pairs in 29000 2000; do
  corpora=(--source "$text/$pairs.en" --target "$text/$pairs.de"
    --valid-source "$data/multi30k/val.en.gz" --valid-target "$data/multi30k/val.de.gz"
    --also-valid "tatoeba=$text/valid.en,$text/valid.de")
  # For 2,000 pairs, `train` chooses the model and its recipe by itself.
  options=(--preset tiny --vocab-size 8000 --dropout 0.2)
  if [[ $pairs == 2000 ]]; then options=(); fi
  train "nothing-$pairs" "${MINUTES:-5}" "${corpora[@]}" "${options[@]}"
  train "adapted-$pairs" "${MINUTES:-5}" "${corpora[@]}" --start-from "$output/general"
done
for model in general nothing-29000 adapted-29000 nothing-2000 adapted-2000; do
  echo "== $model =="
  keras-transformer evaluate --model "$output/$model" \
    --source "$data/multi30k/test_2016_flickr.en.gz" \
    --reference "$data/multi30k/test_2016_flickr.de.gz"
  keras-transformer evaluate --model "$output/$model" --source "$text/test.en" \
    --reference "$text/test.de"
done
