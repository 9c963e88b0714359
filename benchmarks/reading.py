"""How much code a reader follows on five walks through the library, and the size of the package.

Usage: python benchmarks/reading.py [--package DIR]

DIR is a checkout (default: this one), so that two versions can be compared. Each walk runs with a
tiny model on the TensorFlow backend. It counts every function of `keras_transformer` that is
entered, also while TensorFlow traces a graph; a nested function or a method of a class inside a
function counts with the function around it. Lines are those of these functions, without docstrings,
comments and blank lines, whether or not the walk reached them.

- Attention forward: a call of a built `MultiHeadAttention`, self-attention with two masks, eagerly.
- Loss and optimizer step: the first step of `fit` of a compiled `LossModel`, without `layers/`.
- A training step: from pairs of text to the end of the first step of `fit`. The tokenizer and the
  compiled model are given.
- A beam step: from the first call of `decode_step` to the end of a `BeamSearch`, without `layers/`.
- Text to translation: `Translator.translate` of two sentences, without `layers/`.
"""

import argparse
import ast
import contextlib
import functools
import importlib
import inspect
import io
import os
import pathlib
import re
import sys
import threading
import tokenize

PAIRS = [
    ("one two three", "eins zwei drei"),
    ("four five six seven", "vier fünf sechs sieben"),
    ("eight nine", "acht neun"),
    ("ten one four", "zehn eins vier"),
] * 4


@functools.cache
def read(path):
    """Returns the functions of a file as `(first, last, name)`, and its numbers of code lines."""
    source = pathlib.Path(path).read_text(encoding="utf-8")
    functions, docstrings = [], set()

    def visit(node, prefix, is_inside):
        for child in ast.iter_child_nodes(node):
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            is_class = isinstance(child, ast.ClassDef)
            if is_function or is_class:
                add_docstring(child)
            if is_function and not is_inside:
                first = min(part.lineno for part in (child, *child.decorator_list))
                functions.append((first, child.end_lineno, prefix + child.name))
            name = f"{prefix}{child.name}." if is_class else prefix
            visit(child, name, is_inside or is_function)

    def add_docstring(node):
        if ast.get_docstring(node, clean=False) is not None:
            docstrings.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))

    tree = ast.parse(source)
    add_docstring(tree)
    visit(tree, "", False)
    lines = set()
    silent = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in (*silent, tokenize.ENDMARKER):
            lines.update(range(token.start[0], token.end[0] + 1))
    return functions, lines - docstrings


class Walk:
    """Records the functions of the package that are entered in a `with` block."""

    def __init__(self, package, *left_out):
        self.package, self.left_out = package, left_out
        self.functions = set()
        self.is_on = True
        self._seen = {}

    def __enter__(self):
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *exception):
        sys.setprofile(None)
        threading.setprofile(None)

    def _profile(self, frame, event, argument):
        code = frame.f_code
        if event == "call" and self.is_on and code not in self._seen:
            self._seen[code] = True
            path = pathlib.Path(code.co_filename)
            if not path.is_relative_to(self.package) or code.co_name == "<module>":
                return
            if path.relative_to(self.package).parts[0] in self.left_out:
                return
            for first, last, name in read(str(path))[0]:
                if first <= code.co_firstlineno <= last:
                    self.functions.add((path, first, last, name))

    def counts(self):
        """Returns the numbers of files, functions and lines."""
        lines = {
            (path, line)
            for path, first, last, _ in self.functions
            for line in read(str(path))[1]
            if first <= line <= last
        }
        return len({path for path, *_ in self.functions}), len(self.functions), len(lines)


def tiny_model(vocab_size):
    from keras_transformer.models import Transformer

    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 16}
    return Transformer.from_preset("tiny", vocab_size=vocab_size, **sizes)


@functools.cache
def tokenizer():
    from keras_transformer.data import train_sentencepiece

    lines = [line for pair in PAIRS for line in pair]
    return train_sentencepiece(lines, vocab_size=300)


def attention_forward(package):
    from keras import ops

    from keras_transformer.layers import MultiHeadAttention

    layer = MultiHeadAttention(num_heads=2, key_dim=8)
    states, mask = ops.ones((2, 5, 16)), ops.ones((2, 5, 5), "bool")
    layer(states, states)
    with Walk(package) as walk:
        layer(states, states, attention_mask=mask, use_causal_mask=True)
    return walk


def compiled(model):
    from keras_transformer.models import TrainingRecipe
    from keras_transformer.training import LossModel, compile_model

    return compile_model(LossModel(model), TrainingRecipe())


def token_batches():
    # From their modules: to look names up in a package is no part of the walk.
    from keras_transformer.data.corpora import PairsCorpus
    from keras_transformer.data.encoded_corpus import EncodedCorpus
    from keras_transformer.data.token_batches import TokenBatches

    encoded = EncodedCorpus.from_corpus(PairsCorpus(PAIRS), tokenizer())
    return TokenBatches(encoded, tokens_per_batch=60)


def loss_and_optimizer_step(package):

    model = compiled(tiny_model(tokenizer().vocab_size))
    dataset = token_batches().dataset()
    with Walk(package, "layers", "data") as walk:
        model.fit(dataset, steps_per_epoch=1, verbose=0, shuffle=False)
    return walk


def training_step(package):

    model = compiled(tiny_model(tokenizer().vocab_size))
    with Walk(package) as walk:
        dataset = token_batches().dataset()
        model.fit(dataset, steps_per_epoch=1, verbose=0, shuffle=False)
    return walk


def beam_step(package):
    import numpy as np

    from keras_transformer.decoding import BeamSearch

    model, search = tiny_model(50), BeamSearch(beam_size=4)
    state = model.start_decoding(np.full((2, 3), 7, "int32"), search.width, 4)
    walk = Walk(package, "layers")

    def step(*inputs):
        walk.is_on = True
        return model.decode_step(*inputs)

    walk.is_on = False
    with walk:
        search(step, state, [4, 4], 4)
    return walk


def text_to_translation(package):
    from keras_transformer.inference import Translator

    translator = Translator(tiny_model(tokenizer().vocab_size), tokenizer())
    with Walk(package, "layers") as walk:
        translator.translate(["one two three", "four five"])
    return walk


WALKS = (
    attention_forward,
    loss_and_optimizer_step,
    training_step,
    beam_step,
    text_to_translation,
)


def house_figures(package):
    """Yields names and values of figures about the whole package."""
    paths = sorted(package.rglob("*.py"))
    sources = {path: path.read_text(encoding="utf-8") for path in paths}
    yield "files", len(paths)
    yield "lines", sum(len(source.splitlines()) for source in sources.values())
    yield "lines of code", sum(len(read(str(path))[1]) for path in paths)
    classes = public_classes(package)
    yield "public classes", len(classes)
    yield "most bases of ours between a layer and keras.layers.Layer", max(map(num_bases, classes))
    yield "arguments taken from a ** dict", sum(num_pops(ast.parse(s)) for s in sources.values())
    yield "arguments documented under a ** entry", sum(map(num_hidden, classes))


def public_classes(package):
    classes = set()
    for path in sorted(package.glob("*/__init__.py")):
        module = importlib.import_module(f"keras_transformer.{path.parent.name}")
        members = [getattr(module, name) for name in getattr(module, "__all__", ())]
        classes.update(member for member in members if inspect.isclass(member))
    return classes


def num_bases(cls):
    import keras

    if not issubclass(cls, keras.layers.Layer):
        return 0
    bases = cls.__mro__[1 : cls.__mro__.index(keras.layers.Layer)]
    return sum(base.__module__.startswith("keras_transformer") for base in bases)


def num_pops(tree):
    """Returns how many values functions take by name out of their `**` parameter."""
    number = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.args.kwarg:
            for call in ast.walk(node):
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                    is_taken = call.func.attr in ("pop", "get", "setdefault")
                    target = call.func.value
                    is_options = getattr(target, "id", None) == node.args.kwarg.arg
                    number += is_taken and is_options
    return number


def num_hidden(cls):
    """Returns how many names in backticks the `**` entry of a class's docstring has."""
    entry = re.search(r"^ +\*\*\w+: (.*(?:\n {8,}.*)*)", inspect.getdoc(cls) or "", re.M)
    return len(re.findall(r"`[a-z_]+`", entry[1])) if entry else 0


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parents[1]
    parser.add_argument("--package", metavar="DIR", type=pathlib.Path, default=root)
    parser.add_argument("--list", action="store_true", help="also list the functions")
    options = parser.parse_args(arguments)
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    package = options.package.resolve() / "keras_transformer"
    sys.path.insert(0, str(package.parent))
    print("| walk | files | functions | lines |\n|---|---|---|---|")
    for function in WALKS:
        with contextlib.redirect_stdout(sys.stderr):
            walk = function(package)
        name = function.__name__.replace("_", " ")
        print(f"| {name} | " + " | ".join(f"{count:,}" for count in walk.counts()) + " |")
        if options.list:
            for path, first, _, function_name in sorted(walk.functions):
                print(f"    {path.relative_to(package)}:{first} {function_name}")
    print("\n| figure | |\n|---|---|")
    for name, value in house_figures(package):
        print(f"| {name} | {value:,} |")


if __name__ == "__main__":
    main()
