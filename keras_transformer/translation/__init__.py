"""The task of translation: its data, its tokenizers, its score and its commands."""
