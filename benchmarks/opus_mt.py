"""An OPUS-MT model in transformers, in our library and in our SavedModel: answers and speed.

pip install '.[oracles]' '.[ctranslate2]'
Usage: python benchmarks/opus_mt.py --folder DIR --data DIR --languages en de
                                    [--minutes 10] [--rounds 3] [--lines 1000]

Trains a small Marian model with transformers on `train.*`, `val.*` and `test_2016_flickr.*` (plain
or .gz) in --data, for --minutes, unless --folder has one; the files are those of published models,
with a bias of the logits that is not zero. Then it is imported, and the test set is translated by
transformers, by our library, by our SavedModel, and by CTranslate2 from our export and from its own
conversion. Prints how many answers are equal, and BLEU and speed by turns, all in float32.
"""

import argparse
import collections
import datetime
import json
import math
import random
import sys
import tempfile
import time
from pathlib import Path

from alternate import alternate, hardware, median, run_program

PEERS = Path(__file__).resolve().parent / "peers"
sys.path.insert(0, str(PEERS))
SIZES = {"encoder_layers": 3, "decoder_layers": 3, "d_model": 256}
SIZES |= {f"{side}_attention_heads": 4 for side in ("encoder", "decoder")}
SIZES |= {f"{side}_ffn_dim": 1024 for side in ("encoder", "decoder")}
VOCAB_SIZE, BATCH_TOKENS, PEAK, WARMUP = 6000, 3000, 1e-3, 400


def read(data: Path, name: str) -> list[str]:
    from text_setting import lines_of

    path = data / name
    return lines_of(str(path if path.exists() else path.with_name(f"{name}.gz")))


def learn_vocabulary(folder: Path, texts: list[list[str]]) -> None:
    """Writes `source.spm`, `target.spm` and `vocab.json`, as published models have them."""
    import sentencepiece

    pieces = {}
    for side, lines in zip(("source", "target"), texts, strict=True):
        prefix = str(folder / side)
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_prefix=prefix, vocab_size=VOCAB_SIZE, minloglevel=2
        )
        Path(f"{prefix}.model").rename(folder / f"{side}.spm")
        processor = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.spm")
        for number in range(3, VOCAB_SIZE):
            pieces.setdefault(processor.id_to_piece(number))
    ordered = ["</s>", "<unk>", *sorted(pieces), "<pad>"]
    ids = {piece: number for number, piece in enumerate(ordered)}
    (folder / "vocab.json").write_text(json.dumps(ids, ensure_ascii=False))
    (folder / "tokenizer_config.json").write_text(json.dumps({"separate_vocabs": False}))


def train(folder: Path, pairs: list[tuple[str, str]], minutes: float) -> None:
    """Trains a MarianMTModel with transformers, and saves it in the folder."""
    import torch
    import transformers

    tokenizer = transformers.MarianTokenizer.from_pretrained(str(folder))
    pad, size = tokenizer.pad_token_id, len(tokenizer.get_vocab())
    config = transformers.MarianConfig(
        vocab_size=size,
        pad_token_id=pad,
        decoder_start_token_id=pad,
        eos_token_id=tokenizer.eos_token_id,
        forced_eos_token_id=None,
        activation_function="swish",
        scale_embedding=True,
        normalize_embedding=False,
        static_position_embeddings=True,
        dropout=0.1,
        init_std=SIZES["d_model"] ** -0.5,
        **SIZES,
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = transformers.MarianMTModel(config).to(device)
    # As in published models: padding is never generated.
    model.generation_config.update(bad_words_ids=[[pad]], num_beams=4)
    sources = tokenizer([source for source, _ in pairs])["input_ids"]
    targets = tokenizer(text_target=[target for _, target in pairs])["input_ids"]
    # A bias as after a training with one: the logarithms of the frequencies.
    counts = collections.Counter(token for row in targets for token in row)
    total = sum(counts.values())
    shares = [(counts[number] + 0.1) / total for number in range(size)]
    model.final_logits_bias[0] = torch.tensor(shares, device=device).log() / 2
    model.final_logits_bias[0, pad] = 0.0
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / WARMUP, math.sqrt(WARMUP / (step + 1)))
    )
    loss_of = torch.nn.CrossEntropyLoss(ignore_index=pad, label_smoothing=0.1)
    order = sorted(range(len(pairs)), key=lambda n: len(targets[n]))
    rows = BATCH_TOKENS // 20
    batches = [order[start : start + rows] for start in range(0, len(order), rows)]
    model.train()
    start = reported = time.monotonic()
    step = 0
    while time.monotonic() - start < minutes * 60:
        random.shuffle(batches)
        for batch in batches:
            inputs = tokenizer.pad({"input_ids": [sources[n] for n in batch]}, return_tensors="pt")
            labels = tokenizer.pad({"input_ids": [targets[n] for n in batch]}, return_tensors="pt")
            inputs, labels = inputs.to(device), labels["input_ids"].to(device)
            first = torch.full((len(batch), 1), pad, device=device)
            shifted = torch.cat([first, labels[:, :-1]], dim=1)
            logits = model(**inputs, decoder_input_ids=shifted).logits
            loss = loss_of(logits.flatten(0, 1), labels.flatten())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            with torch.no_grad():
                # Zeros, as in published models: the projection to logits would change it.
                model.get_input_embeddings().weight[pad] = 0.0
            schedule.step()
            step += 1
            now = time.monotonic()
            if now - reported > 60:
                print(
                    f"{(now - start) / 60:.0f} min, step {step}, loss {loss:.2f}", file=sys.stderr
                )
                reported = now
            if now - start > minutes * 60:
                break
    model.eval().save_pretrained(folder)


def compare(folder: Path, model: str, lines: list[str], work: Path) -> None:
    """Prints how many answers equal those of transformers."""
    import ctranslate2
    import ctranslate2.converters
    import tensorflow as tf
    import torch
    import transformers

    from keras_transformer import Translator
    from keras_transformer.decoding import BeamSearch, GreedySearch
    from keras_transformer.export import export_ctranslate2, export_saved_model

    tokenizer = transformers.MarianTokenizer.from_pretrained(str(folder))
    marian = transformers.MarianMTModel.from_pretrained(folder, dtype=torch.float32).eval()
    translator = Translator.load(model)
    export_ctranslate2(translator, work / "ours")
    converter = ctranslate2.converters.TransformersConverter(str(folder))
    converter.convert(str(work / "theirs"))
    engines = {name: ctranslate2.Translator(str(work / name)) for name in ("ours", "theirs")}
    pieces = {
        "ours": [
            translator.source_tokenizer.pieces(ids)
            for ids in translator.source_tokenizer.encode_batch(lines)
        ],
        "theirs": [tokenizer.convert_ids_to_tokens(tokenizer(line)["input_ids"]) for line in lines],
    }
    for beam_size in (1, 4):
        expected = []
        options = {"early_stopping": "never", "renormalize_logits": True} if beam_size > 1 else {}
        for line in lines:
            inputs = tokenizer([line], return_tensors="pt")
            limit = inputs["input_ids"].shape[1] - 1 + translator.extra_length
            [tokens] = marian.generate(
                **inputs, num_beams=beam_size, max_new_tokens=limit, length_penalty=1.0, **options
            )
            expected.append(
                tokenizer.decode(
                    tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
                )
            )
        search = GreedySearch()
        if beam_size > 1:
            search = BeamSearch(beam_size, length_penalty=1.0, length_normalization="length")
        directory = work / f"saved-{beam_size}"
        export_saved_model(translator, directory, search=search)
        serve = tf.saved_model.load(str(directory)).signatures["serving_default"]
        answers = {
            "our library": translator.translate(lines, search),
            "our SavedModel": [
                text.decode() for text in serve(text=tf.constant(lines))["translation"].numpy()
            ],
        }
        for name, found in answers.items():
            num_equal = sum(a == b for a, b in zip(found, expected, strict=True))
            print(f"beam {beam_size}: {name}: {num_equal} of {len(lines)} answers of transformers")
        results = {
            name: [
                result.hypotheses[0]
                for result in engine.translate_batch(pieces[name], beam_size=beam_size)
            ]
            for name, engine in engines.items()
        }
        num_equal = sum(a == b for a, b in zip(*results.values(), strict=True))
        print(f"beam {beam_size}: CTranslate2: {num_equal} of {len(lines)} from our export equal")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="folder of the Marian model")
    parser.add_argument("--data", type=Path, required=True, help="folder of the text")
    parser.add_argument("--languages", nargs=2, default=["en", "de"], help="default: en de")
    parser.add_argument("--minutes", type=float, default=10, help="of training (default: 10)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each program (default: 3)")
    parser.add_argument("--lines", type=int, default=1000, help="of the test set (default: 1000)")
    arguments = parser.parse_args()
    folder, data = arguments.folder, arguments.data
    print(f"{datetime.date.today()}, {hardware()}, medians of {arguments.rounds} runs by turns")
    if not (folder / "config.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        texts = [read(data, f"train.{language}") for language in arguments.languages]
        learn_vocabulary(folder, texts)
        train(folder, list(zip(*texts, strict=True)), arguments.minutes)
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        from keras_transformer.bridges import load_opus_mt

        model = str(work / "model")
        load_opus_mt(folder).save(model)
        files = []
        for language in arguments.languages:
            lines = read(data, f"test_2016_flickr.{language}")[: arguments.lines]
            files.append(str(work / f"test.{language}"))
            Path(files[-1]).write_text("\n".join(lines) + "\n", encoding="utf-8")
        compare(folder, model, read(work, f"test.{arguments.languages[0]}"), work)
        environment = {"BENCHMARK_BY_LENGTH": "1"}
        for beam_size in ("1", "4"):
            saved = str(work / f"form-{beam_size}")
            form = [model, saved, "float32", beam_size, "None"]
            run_program([str(PEERS / "text_export.py"), *form], environment)
            commands = {
                "transformers": ["text_transformers.py", str(folder), *files, beam_size],
                "`translate`": ["text_ours.py", model, *files, beam_size, "float32", "None"],
                "SavedModel, one request": ["text_saved_model.py", saved, *files, "1"],
            }
            commands = {
                name: [str(PEERS / first), *more] for name, (first, *more) in commands.items()
            }
            print(f"\nBeam {beam_size}:\n\n| | sentences/s | BLEU |\n|---|---|---|")
            for name, found in alternate(commands, arguments.rounds, environment).items():
                speed, bleu = median(found, "sentences_per_second"), median(found, "bleu")
                print(f"| {name} | {speed:,.0f} | {bleu:.2f} |", flush=True)


if __name__ == "__main__":
    main()
