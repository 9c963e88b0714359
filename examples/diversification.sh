#!/usr/bin/env bash
# Trains and scores the first model of the table of translators in docs/results.md, on the CPU. The
# other commands train the second and the third model.
#
#     examples/diversification.sh
#     ANSWERS=best MINUTES=58 examples/diversification.sh
#     SEEDS="1 2" ANSWERS=best MINUTES=78 examples/diversification.sh
#
# Data diversification (Nguyen et al., 2020): models of both directions, the teachers, translate
# their own training text. Another model, the student, learns from this text and from each side with
# its translations. ANSWERS lists the translations of a sentence that are used: `best` is the one
# with the highest score, `nearest` the one of five with the highest BLEU against the real
# translation (Kim and Rush, 2016). SEEDS=1 lists the seeds: each of them trains one teacher of each
# direction. STUDENT_SEED=1 is the seed of the student. TEACHER_MINUTES=20 sets the training time of
# each teacher, MINUTES=100 that of the student. KERAS_TRANSFORMER_DATA is the folder with
# `multi30k/`, and in it the files bpe10k.* of multi30k.sh.
set -euo pipefail

data="${KERAS_TRANSFORMER_DATA:?set KERAS_TRANSFORMER_DATA to the folder that holds multi30k/}/multi30k"
output="runs/diversification"
text="$output/text"
seeds="${SEEDS:-1}"
answers="${ANSWERS:-best nearest}"
student_seed="${STUDENT_SEED:-1}"
student="student-${seeds// /-}-${answers// /-}-seed-$student_seed"
mkdir -p "$text"
for language in en de; do
  gzip -dc "$data/bpe10k.train.$language.gz" > "$text/train.$language"
done

shared=(--preset tiny --vocabulary-type subword --max-steps 100000 --average-windows 5,10,15,20
  --dropout 0.2 --attention-dropout 0.1 --activation-dropout 0.1)
# On Intel's CPUs with AMX and AMD's (with clzero) with AVX512-BF16, bfloat16 is faster.
if grep -qsE 'amx_bf16|avx512_bf16.*clzero' /proc/cpuinfo; then shared+=(--mixed-precision); fi

train() { # NAME SOURCE_LANGUAGE TARGET_LANGUAGE MINUTES OPTIONS...
  keras-transformer train --output "$output/$1" --max-minutes "$4" "${shared[@]}" \
    --valid-source "$data/bpe10k.valid.$2.gz" --valid-target "$data/bpe10k.valid.$3.gz" "${@:5}"
}

translate() { # SOURCE_LANGUAGE TARGET_LANGUAGE SEED
  keras-transformer translate --model "$output/$1-$2-$3" --beam-size 5 --n-best 5 \
    --input "$text/train.$1" --output "$text/answers-$3.$2"
  # Answers have whole words. The training text shows how to split them; other words are split into
  # the longest subwords, from the left.
  python3 - "$text" "$2" "$3" <<'PYTHON'
import pathlib, sys
from sacrebleu.metrics import BLEU

text, language, seed = pathlib.Path(sys.argv[1]), *sys.argv[2:]
with (text / f"train.{language}").open(encoding="utf-8") as lines:
    references = [line.rstrip("\n") for line in lines]
subwords, pieces = {}, set()
for line in references:
    pieces.update(line.split())
    for word in line.replace("@@ ", "@@").split():
        subwords[word.replace("@@", "")] = word.replace("@@", "@@ ")


def split(word):
    if word in pieces:
        return word
    for length in range(len(word) - 1, 0, -1):
        if word[:length] + "@@" in pieces:
            return f"{word[:length]}@@ {split(word[length:])}"
    return word


answers = [[] for _ in references]  # of each line, best first
with (text / f"answers-{seed}.{language}").open(encoding="utf-8") as lines:
    for line in lines:
        number, _, _, answer = line.rstrip("\n").split("\t")
        answers[int(number) - 1].append(answer)

bleu = BLEU(tokenize="none", effective_order=True, force=True)
chosen = {"best": [candidates[0] for candidates in answers], "nearest": []}
for reference, candidates in zip(references, answers, strict=True):
    words = reference.replace("@@ ", "")
    scores = [bleu.sentence_score(answer, [words]).score for answer in candidates]
    chosen["nearest"].append(candidates[scores.index(max(scores))])
for name, translations in chosen.items():
    with (text / f"{name}-{seed}.{language}").open("w", encoding="utf-8") as output:
        for answer in translations:
            print(*(subwords.get(word) or split(word) for word in answer.split()), file=output)
PYTHON
}

corpora=(--corpus "real=1:$text/train.en,$text/train.de")
for seed in $seeds; do
  for pair in "en de" "de en"; do
    read -r source target <<< "$pair"
    train "$source-$target-$seed" "$source" "$target" "${TEACHER_MINUTES:-20}" --bleu-every 5 \
      --seed "$seed" --source "$text/train.$source" --target "$text/train.$target"
    translate "$source" "$target" "$seed"
  done
  for answer in $answers; do
    corpora+=(--corpus "forward-$answer-$seed=1:$text/train.en,$text/$answer-$seed.de"
      --corpus "back-$answer-$seed=1:$text/$answer-$seed.en,$text/train.de")
  done
done

train "$student" en de "${MINUTES:-100}" --seed "$student_seed" "${corpora[@]}" \
  --evaluate-every 500 --checkpoint-every 500 --bleu-every 4
# The text is already tokenized and lower-cased: BLEU uses its tokens, with subwords joined.
keras-transformer evaluate --model "$output/$student" \
  --source "$data/bpe10k.test.2016.en.gz" --reference "$data/bpe10k.test.2016.de.gz"
