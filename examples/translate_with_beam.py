"""Translates a large text file with a SavedModel through Apache Beam, here or on a cluster.

    python examples/translate_with_beam.py --model serving/en_de/1 --input web.en.gz \
        --output web.de.gz --failed failed.tsv

Line N of the output is the translation of line N of the input. A line that cannot be translated is
empty there, and in the second file with its number and the reason: it is not UTF-8, a word of it is
longer than the model reads, it lacks the language code that its model needs, or the model fails
with it. Both files appear when all lines are done.

All other options are Beam's (`PipelineOptions`), such as

    --runner FnApiRunner --direct_running_mode multi_processing --direct_num_workers 4
    --runner FlinkRunner --flink_master http://HOST:8081 --environment_config IMAGE
    --runner SparkRunner --spark_master_url spark://HOST:7077 --environment_config IMAGE
    --runner DataflowRunner --project P --region R --temp_location gs://BUCKET/tmp \
        --sdk_container_image IMAGE

All workers must see the paths, on a common disk or in a bucket. They need Beam, tensorflow and
tensorflow-text, but not keras_transformer.
"""

import argparse
import codecs
import contextlib
import gzip
import math
import shutil
import uuid

import apache_beam as beam
from apache_beam.io.filesystem import BeamIOError, CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.ml.inference.base import KeyedModelHandler, ModelHandler, RunInference
from apache_beam.options.pipeline_options import PipelineOptions

LINES_PER_SHARD = 100_000  # which are sorted in memory


@contextlib.contextmanager
def open_file(path, mode):
    """Opens a file in any of Beam's file systems; `.gz` is packed."""
    # Beam's own unpacking takes a gzip file that was cut for a complete one.
    options = {"compression_type": CompressionTypes.UNCOMPRESSED}
    is_new = mode == "wb"
    with (FileSystems.create if is_new else FileSystems.open)(path, **options) as file:
        if not path.endswith(".gz"):
            yield file
            return
        with gzip.GzipFile("", mode, fileobj=file, mtime=0) as unpacked:
            yield unpacked


def numbered_lines(path):
    """Yields `(number, line)`, from 1; the lines are bytes, without their ends."""
    with open_file(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            yield number, line.removesuffix(b"\n").removesuffix(b"\r")


class SavedModelHandler(ModelHandler):
    """Turns each line into its translation and the reason why there is none, one of them empty.

    The model sorts the lines of a batch by length, so batches of many lines are fast.
    """

    def __init__(self, path, batch_size):
        super().__init__(min_batch_size=batch_size, max_batch_size=batch_size)
        self._path = path

    def load_model(self):
        import tensorflow as tf
        import tensorflow_text  # noqa: F401  registers the tokenizer's operations

        return tf.saved_model.load(self._path)

    def run_inference(self, batch, model, inference_args=None):
        reasons = list(map(why_not_utf8, batch))
        lines = [line for line, reason in zip(batch, reasons, strict=True) if not reason]
        answers = iter(self._translate(lines, model))
        return [("", reason) if reason else next(answers) for reason in reasons]

    def _translate(self, lines, model):
        import tensorflow as tf

        if not lines:
            return []
        try:
            function = model.signatures["serving_default"]
            # A model of several languages has inputs for them, "" for its own.
            _, inputs = function.structured_input_signature
            empty = tf.constant([b""] * len(lines))
            outputs = function(**dict.fromkeys(inputs, empty) | {"text": tf.constant(lines)})
        except tf.errors.OpError as error:
            if len(lines) == 1:
                return [("", f"the model fails: {' '.join(error.message.split())[:300]}")]
            half = len(lines) // 2
            return self._translate(lines[:half], model) + self._translate(lines[half:], model)
        columns = (outputs[name].numpy() for name in ("translation", "score", "truncated"))
        return [as_answer(*row) for row in zip(*columns, strict=True)]


def why_not_utf8(line):
    try:
        line.decode()
        return ""
    except UnicodeDecodeError as error:
        where = f"byte {error.start + 1} is 0x{line[error.start]:02x}"
        return f"the line is not valid UTF-8 ({where})"


def as_answer(text, score, is_cut):
    if is_cut:
        return "", "the line is longer than the model reads"
    if score == -math.inf:
        return "", "the model has no answer; does the line lack the code of a language?"
    return text.decode().replace("\r", " ").replace("\n", " "), ""


def write_shard(shard, prefix):
    """Writes the answers to lines that follow one another; returns the shard's number and path."""
    index, answers = shard
    # A runner may repeat the work: what another attempt has written stays as it is.
    path = f"{prefix}-{index:08d}-{uuid.uuid4().hex}"
    with open_file(f"{path}.txt", "wb") as texts, open_file(f"{path}.tsv", "wb") as failed:
        for number, (text, reason) in sorted(answers):
            texts.write(f"{text}\n".encode())
            if reason:
                failed.write(f"{number}\t{reason}\n".encode())
    return index, path


def join_shards(shards, outputs):
    """Writes the outputs, a dict of their paths by the suffix of the shards."""
    for suffix, output in outputs.items():
        folder, name = FileSystems.split(output)
        aside = FileSystems.join(folder, f"{uuid.uuid4().hex}-{name}")
        with open_file(aside, "wb") as joined:
            for _, path in sorted(shards):
                with open_file(f"{path}{suffix}", "rb") as file:
                    shutil.copyfileobj(file, joined)
        FileSystems.rename([aside], [output])


def absolute(path):
    # Beam lists no files by a relative name.
    return FileSystems.join(*FileSystems.split(path))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="All other options are those of Apache Beam, such as --runner.",
        allow_abbrev=False,
    )
    paths = {
        "--model": "folder of the SavedModel",
        "--input": "text, one sentence a line (.gz works)",
        "--output": "translations, line by line (.gz works)",
        "--failed": "numbers of the lines that were not translated, and the reasons",
    }
    for name, text in paths.items():
        parser.add_argument(name, required=True, type=absolute, help=text)
    parser.add_argument("--batch-size", type=int, default=1024, help="lines that a model gets")
    arguments, others = parser.parse_known_args()
    for path in (arguments.input, FileSystems.join(arguments.model, "saved_model.pb")):
        if not FileSystems.exists(path):
            parser.error(f"File not found: {path!r}.")
    outputs = {".txt": arguments.output, ".tsv": arguments.failed}
    if len({arguments.input, *outputs.values()}) < 3:
        parser.error("--input, --output and --failed must be three files.")

    prefix = f"{arguments.output}.shard-{uuid.uuid4().hex}"
    handler = SavedModelHandler(arguments.model, arguments.batch_size)
    try:
        with beam.Pipeline(options=PipelineOptions(others)) as pipeline:
            (
                pipeline
                | beam.Create([arguments.input])
                | "Read" >> beam.FlatMap(numbered_lines)
                | beam.Reshuffle()  # spreads the lines over the workers
                | "Translate" >> RunInference(KeyedModelHandler(handler))
                | beam.Map(lambda answer: ((answer[0] - 1) // LINES_PER_SHARD, answer))
                | beam.GroupByKey()
                | "Write" >> beam.Map(write_shard, prefix)
                | beam.combiners.ToList()
                | "Join" >> beam.Map(join_shards, outputs)
            )
    finally:
        with contextlib.suppress(BeamIOError):  # There may be none.
            FileSystems.delete([f"{prefix}-*"])
    with open_file(arguments.failed, "rb") as file:
        num_failed = sum(1 for _ in file)
    print(f"wrote {arguments.output}; set {num_failed:,} lines aside: {arguments.failed}")


if __name__ == "__main__":
    main()
