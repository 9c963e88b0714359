"""Measures transformers' MarianMTModel, base size with random weights, from ids to ids.

pip install transformers torch
Usage: decode_transformers.py BATCHES BEAM_SIZES float32|bfloat16, such as 1,32 1,4 bfloat16
"""

import functools
import sys

import torch
from decode_setting import TARGET_LENGTH, THREADS, VOCAB, measure, source_ids
from transformers import MarianConfig, MarianMTModel

batches, beam_sizes = ([int(number) for number in text.split(",")] for text in sys.argv[1:3])
dtype = getattr(torch, sys.argv[3])
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
device = "cuda" if torch.cuda.is_available() else "cpu"
model = MarianMTModel(config).to(device, dtype).eval()


@torch.inference_mode()
def translate(ids, beam_size):
    answer = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        num_beams=beam_size,
        do_sample=False,
        min_new_tokens=TARGET_LENGTH,
        max_new_tokens=TARGET_LENGTH,
    )
    if answer.shape[1] != 1 + TARGET_LENGTH:
        raise SystemExit(f"answers of {answer.shape[1] - 1} tokens, not {TARGET_LENGTH}")
    return answer.cpu()


for batch in batches:
    ids = torch.tensor(source_ids(batch))
    ids = torch.cat([ids, torch.full((batch, 1), 3)], dim=1).to(device)
    for beam_size in beam_sizes:
        measure(functools.partial(translate, ids, beam_size), batch, beam_size=beam_size)
