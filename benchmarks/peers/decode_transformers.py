"""Measures transformers' MarianMTModel, base size with random weights, from ids to ids.

pip install transformers torch
Usage: decode_transformers.py BATCH BEAM_SIZE float32|bfloat16
"""

import sys

import torch
from decode_setting import SOURCE_LENGTH, TARGET_LENGTH, THREADS, VOCAB, measure, source_ids
from transformers import MarianConfig, MarianMTModel

batch, beam_size, dtype = int(sys.argv[1]), int(sys.argv[2]), getattr(torch, sys.argv[3])
torch.set_num_threads(THREADS)
torch.manual_seed(0)
config = MarianConfig(
    vocab_size=VOCAB,
    d_model=512,
    encoder_layers=6,
    decoder_layers=6,
    encoder_attention_heads=8,
    decoder_attention_heads=8,
    encoder_ffn_dim=2048,
    decoder_ffn_dim=2048,
    max_position_embeddings=512,
    activation_function="relu",
    scale_embedding=True,
    pad_token_id=0,
    eos_token_id=3,
    decoder_start_token_id=2,
    forced_eos_token_id=None,
)
model = MarianMTModel(config).to(dtype).eval()
ids = torch.tensor(source_ids(batch))
ids = torch.cat([ids, torch.full((batch, 1), 3)], dim=1)


@torch.inference_mode()
def translate():
    answer = model.generate(
        input_ids=ids,
        attention_mask=torch.ones(batch, SOURCE_LENGTH, dtype=torch.long),
        num_beams=beam_size,
        do_sample=False,
        min_new_tokens=TARGET_LENGTH,
        max_new_tokens=TARGET_LENGTH,
    )
    if answer.shape[1] != 1 + TARGET_LENGTH:
        raise SystemExit(f"answers of {answer.shape[1] - 1} tokens, not {TARGET_LENGTH}")


measure(translate, batch)
