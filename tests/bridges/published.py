"""Published models with random weights, as transformers saves them."""

import json
import os
import pathlib
import shutil

import numpy as np
import pytest
import safetensors.numpy
import sentencepiece

PORTUGUESE = ">>por<<"
# The settings of the two kinds of published models that differ, on small layers.
KINDS = {
    "opus": {"activation_function": "swish", "num_beams": 6},
    "tc-big": {"activation_function": "relu", "num_beams": 4},
}
_SIZES = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 32}
_SIZES |= {f"{side}_attention_heads": 4 for side in ("encoder", "decoder")}
_SIZES |= {f"{side}_ffn_dim": 48 for side in ("encoder", "decoder")}
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


def save_model(
    folder, seed=0, safe=True, dtype="float32", bias=1.0, num_beams=4, end_bias=5.0, **settings
):
    """Writes weights and config beside a vocabulary; returns the model of transformers."""
    import torch
    import transformers

    names = [name for name in ("vocab.json", "target_vocab.json") if (folder / name).exists()]
    source, *target = (json.loads((folder / name).read_text()) for name in names)
    vocabulary = target[0] if target else source
    pad = vocabulary["<pad>"]
    config = transformers.MarianConfig(**{
        "vocab_size": len(source), "decoder_vocab_size": len(vocabulary),
        "share_encoder_decoder_embeddings": not target, "pad_token_id": pad,
        "decoder_start_token_id": pad, "eos_token_id": vocabulary["</s>"], "bos_token_id": 0,
        "forced_eos_token_id": None, "scale_embedding": True, "static_position_embeddings": True,
        "normalize_embedding": False, "max_position_embeddings": 512, **_SIZES, **settings,
    })  # fmt: skip
    transformers.set_seed(seed)
    model = transformers.MarianMTModel(config)
    generator = np.random.default_rng(seed)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "embed_positions" not in name:
                scale = tensor.shape[-1] ** -0.5
                noise = generator.normal(0.0, scale, tensor.shape)
                is_gain = "norm" in name and name.endswith("weight")
                tensor.copy_(torch.as_tensor(noise) + is_gain)
        inner = model.model
        stacks = [inner.encoder, inner.decoder]
        tables = (
            [stack.embed_tokens.weight for stack in stacks] if target else [inner.shared.weight]
        )
        for table in tables:
            table[-1] = 0.0  # of the padding
        noise = torch.as_tensor(generator.normal(0.0, bias, len(vocabulary)))
        model.final_logits_bias[0] = noise
        model.final_logits_bias[0, pad] = 0.0
        model.final_logits_bias[0, vocabulary["</s>"]] += end_bias
    model.generation_config.num_beams = num_beams
    model = model.to(getattr(torch, dtype)).eval()
    model.save_pretrained(folder)
    if not safe:
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    return model


def save_arrays(folder, seed=0):
    """Writes weights and config beside a vocabulary, without torch."""
    generator = np.random.default_rng(seed)
    vocabulary = json.loads((folder / "vocab.json").read_text())
    size, pad, width = len(vocabulary), vocabulary["<pad>"], _SIZES["d_model"]
    arrays = {"model.shared.weight": generator.normal(size=(size, width)) * width**-0.5}
    arrays["model.shared.weight"][pad] = 0.0
    arrays["final_logits_bias"] = generator.normal(size=(1, size))
    arrays["final_logits_bias"][0, vocabulary["</s>"]] += 5.0

    def add_map(name, output_dim, input_dim):
        arrays[f"{name}.weight"] = generator.normal(size=(output_dim, input_dim)) * input_dim**-0.5
        arrays[f"{name}.bias"] = generator.normal(size=output_dim) * 0.1

    def add_norm(name):
        arrays[f"{name}.weight"] = 1.0 + 0.1 * generator.normal(size=width)
        arrays[f"{name}.bias"] = 0.1 * generator.normal(size=width)

    for side, attentions in (("encoder", 1), ("decoder", 2)):
        for number in range(_SIZES[f"{side}_layers"]):
            layer = f"model.{side}.layers.{number}"
            for attention in ("self_attn", "encoder_attn")[:attentions]:
                for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    add_map(f"{layer}.{attention}.{name}", width, width)
                add_norm(f"{layer}.{attention}_layer_norm")
            add_map(f"{layer}.fc1", _SIZES[f"{side}_ffn_dim"], width)
            add_map(f"{layer}.fc2", width, _SIZES[f"{side}_ffn_dim"])
            add_norm(f"{layer}.final_layer_norm")
    arrays = {name: array.astype("float32") for name, array in arrays.items()}
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    config = {
        "model_type": "marian", "vocab_size": size, "pad_token_id": pad, "scale_embedding": True,
        "decoder_start_token_id": pad, "eos_token_id": vocabulary["</s>"],
        "activation_function": "swish", "dropout": 0.1, **_SIZES,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"num_beams": 4}))


def small_model(folder, kind="opus", codes=(), separate=False, **options):
    """A small published model: files and weights in a folder."""
    folder.mkdir(exist_ok=True)
    learn_files(folder, codes, separate)
    return save_model(folder, **{**KINDS[kind], **options})


def copy_files(name, folder):
    """Copies the files of a published model, which may be read-only, to a folder."""
    shutil.copytree(published_files(name), folder, copy_function=shutil.copyfile)
    folder.chmod(0o755)
    return folder
