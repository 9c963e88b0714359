"""Loads a folder of `export --format transformers` with transformers, and translates with it."""

import pytest


class TransformersPeer:
    """The model and the tokenizer that the `Auto` classes load from a folder.

    `epsilon` replaces the one of the layer norms, which no file of Marian has.
    """

    def __init__(self, folder, epsilon=1e-6):
        self.torch = pytest.importorskip("torch", reason="pip install torch")
        transformers = pytest.importorskip("transformers", reason="pip install transformers")
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
        for module in self.model.modules():
            if isinstance(module, self.torch.nn.LayerNorm):
                module.eps = epsilon

    def log_probabilities(self, texts, answers):
        """Those of the tokens of each answer, with EOS."""
        scores = []
        for text, answer in zip(texts, answers, strict=True):
            inputs = self.tokenizer([text], text_target=[answer], return_tensors="pt")
            labels = inputs.pop("labels")
            start = self.torch.tensor([[self.model.config.decoder_start_token_id]])
            begun = self.torch.cat([start, labels[:, :-1]], dim=1)
            with self.torch.no_grad():
                logits = self.model(**inputs, decoder_input_ids=begun).logits
            tokens = logits.log_softmax(-1).gather(-1, labels[..., None])
            scores.append(tokens[0, :, 0].tolist())
        return scores

    def generate(self, text, max_tokens, **options):
        """The ids of the best answer, without the start, and its text."""
        inputs = self.tokenizer([text], return_tensors="pt")
        # The start counts.
        [ids] = self.model.generate(**inputs, max_length=max_tokens + 1, **options)
        return ids[1:].tolist(), self.tokenizer.decode(ids, skip_special_tokens=True)
