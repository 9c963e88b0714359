"""Published models with random weights: a folder with the files of transformers' format."""

import json
import os
import pathlib

import numpy as np
import pytest
import safetensors.numpy
import sentencepiece

PORTUGUESE = ">>por<<"
_WIDTH, _FFN_DIM, _LAYERS = 32, 48, 2
_SIZES = {"d_model": _WIDTH}
for _side in ("encoder", "decoder"):
    _SIZES |= {
        f"{_side}_layers": _LAYERS,
        f"{_side}_attention_heads": 4,
        f"{_side}_ffn_dim": _FFN_DIM,
    }
SOURCES = ["a dog runs in the snow .", "two men sit on a bench and read .", "the red house is old"]
TARGETS = ["ein Hund rennt im Schnee .", "zwei Männer sitzen auf einer Bank .", "das rote Haus"]


def published_files(name):
    """The folder of a published model's files, without weights."""
    folder = pathlib.Path(os.environ.get("KERAS_TRANSFORMER_DATA", ""), "opus-mt", name)
    if not folder.is_dir():
        pytest.skip("needs OPUS-MT: set KERAS_TRANSFORMER_DATA to a folder that holds opus-mt/")
    return folder


def learn_files(folder, codes=(), separate=False):
    """Learns two SentencePiece models and writes the vocabulary as Marian orders it."""
    pieces = []
    for side, lines in (("source", SOURCES), ("target", TARGETS)):
        prefix = str(folder / side)
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines * 3), model_prefix=prefix, vocab_size=60, minloglevel=2,
            hard_vocab_limit=False, character_coverage=1.0,
        )  # fmt: skip
        pathlib.Path(f"{prefix}.model").rename(f"{prefix}.spm")
        processor = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.spm")
        pieces.append([processor.id_to_piece(n) for n in range(3, processor.get_piece_size())])
    joint = pieces if separate else [sorted({*pieces[0], *pieces[1]})]
    longest = max(map(len, joint))  # transformers has one id of padding for both.
    joint = [of_side + [f"unused{n}" for n in range(longest - len(of_side))] for of_side in joint]
    for name, of_side in zip(("vocab.json", "target_vocab.json"), joint, strict=False):
        ordered = ["</s>", "<unk>", *codes, *of_side, "<pad>"]
        text = json.dumps({piece: number for number, piece in enumerate(ordered)})
        (folder / name).write_text(text)
    (folder / "tokenizer_config.json").write_text(json.dumps({"separate_vocabs": separate}))


def save_arrays(folder):
    """Writes weights and config beside one vocabulary, or two."""
    generator = np.random.default_rng(4)  # Its answers are short, and not empty.
    names = ["shared"]
    if is_separate := (folder / "target_vocab.json").exists():
        names = ["encoder.embed_tokens", "decoder.embed_tokens"]
    vocabulary = json.loads((folder / "vocab.json").read_text())
    size, pad, end = len(vocabulary), vocabulary["<pad>"], vocabulary["</s>"]
    arrays = {"final_logits_bias": generator.normal(size=(1, size))}
    arrays["final_logits_bias"][0, end] += 3.0
    for name in names:
        arrays[f"model.{name}.weight"] = generator.normal(size=(size, _WIDTH)) * _WIDTH**-0.5
        arrays[f"model.{name}.weight"][pad] = 0.0

    def add(name, output_dim, input_dim=None):
        """Adds a map, or a norm if there is no `input_dim`."""
        noise = generator.normal(size=(output_dim, input_dim) if input_dim else output_dim)
        scaled = noise * input_dim**-0.5 if input_dim else 1.0 + 0.1 * noise
        arrays[f"{name}.weight"], arrays[f"{name}.bias"] = (
            scaled,
            0.1 * generator.normal(size=output_dim),
        )

    for side, attentions in (
        ("encoder", ["self_attn"]),
        ("decoder", ["self_attn", "encoder_attn"]),
    ):
        for number in range(_LAYERS):
            layer = f"model.{side}.layers.{number}"
            for attention in attentions:
                for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    add(f"{layer}.{attention}.{name}", _WIDTH, _WIDTH)
                add(f"{layer}.{attention}_layer_norm", _WIDTH)
            add(f"{layer}.fc1", _FFN_DIM, _WIDTH)
            add(f"{layer}.fc2", _WIDTH, _FFN_DIM)
            add(f"{layer}.final_layer_norm", _WIDTH)
    arrays = {name: array.astype("float32") for name, array in arrays.items()}
    safetensors.numpy.save_file(arrays, folder / "model.safetensors", {"format": "pt"})
    ids = {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": end}
    config = {
        "model_type": "marian", "vocab_size": size, "scale_embedding": True, "dropout": 0.1,
        "activation_function": "swish", "share_encoder_decoder_embeddings": not is_separate,
        "static_position_embeddings": True, "forced_eos_token_id": end, **ids, **_SIZES,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"num_beams": 4, **ids}))
