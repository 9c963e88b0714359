"""Checkpoints of a training, which a process killed at any time leaves whole, and its lock."""

import contextlib
import dataclasses
import errno
import itertools
import json
import logging
import math
import os
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import keras
import numpy as np
from filelock import FileLock, Timeout

from keras_transformer.checks import check_positive_integer
from keras_transformer.errors import UserError
from keras_transformer.files import atomic_write, remove_leftovers
from keras_transformer.layouts import LOCK_FILE
from keras_transformer.models.weight_files import WEIGHTS_SUFFIX, save_weights_only
from keras_transformer.training.distribution import model_scope
from keras_transformer.training.processes import process_group

_LOGGER = logging.getLogger(__name__)
_METADATA = "metadata"
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # errors of file systems without locks
_SECONDS_TO_SEE = 30  # Until a file that another machine has written is seen.


@dataclasses.dataclass
class Progress:
    """The progress of a training; saved with its state."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    minutes: float = 0.0
    evaluations: int = 0
    unfinished_row: dict | None = None  # of the history: its evaluation was interrupted
    loss_sums: list | None = None  # sum and number of the losses since step `loss_start`
    loss_start: int = 0
    best_score: float | None = None
    best_step: int = 0
    best_loss: float | None = None
    without_gain: int = 0  # last evaluations that improved neither the loss nor the score
    validation_id: list | None = None  # `TrainingPlan.validation_id` of the best results

    @classmethod
    def from_dict(cls, state: Mapping) -> "Progress":
        """Returns the progress that was saved; old states have `_bleu` in names, not `_score`."""
        state = {name.replace("_bleu", "_score"): state[name] for name in state}
        state.pop("last_score", None)
        types = {field.name: field.type for field in dataclasses.fields(cls)}
        for name, value in state.items():
            if name not in types or not isinstance(value, types[name] | int):
                raise UserError(f"The training state is damaged. Received: {name}={value!r}")
        return cls(**state)


class Checkpoints:
    """The last weight files of a training, and its full state.

    - `step-00001234.weights.h5`: weights after that many updates, for averaging.
    - `state.npz`: the variables of the model (with the states of its random seeds) and of the
      optimizer, and a dict of the caller. `state.previous.npz` is the state before.
    - `best.weights.h5`, written by `train`: the weights with the best score so far.

    Every file is written to a temporary name and renamed. A damaged state is noticed by its
    checksums, and the previous one is used.

    Args:
        directory: Folder of the files; created when it is first needed.
        keep: Number of weight files to keep, the last ones.

    Raises:
        ValueError: If `keep` is below 1.

    Example:

    >>> import tempfile
    >>> checkpoints = keras_transformer.training.Checkpoints(tempfile.mkdtemp(), keep=2)
    >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    >>> model.compile("adam", "mse")
    >>> checkpoints.save_state(model, {"step": 7})
    >>> checkpoints.restore_state(model)
    {'step': 7}
    """

    def __init__(self, directory: str | os.PathLike, keep: int = 5):
        check_positive_integer("keep", keep)
        self.directory = Path(directory)
        self.keep = keep
        self.state_path = self.directory / "state.npz"
        self.previous_state_path = self.directory / "state.previous.npz"
        self.best_path = self.directory / f"best{WEIGHTS_SUFFIX}"

    def weight_files(self) -> list[Path]:
        """Returns the weight files, oldest first."""
        return sorted(self.directory.glob(f"step-*{WEIGHTS_SUFFIX}"), key=step_of)

    def save_weights(self, model: keras.Model, step: int) -> Path:
        """Writes a weight file and removes all but the last `keep` files; returns its path.

        Args:
            model: `keras.Model`.
            step: Number of updates done.
        """
        path = self.directory / f"step-{step:08d}{WEIGHTS_SUFFIX}"
        save_weights_only(model, path)
        for old in self.weight_files()[: -self.keep]:
            old.unlink(missing_ok=True)
        # A killed process left a file of another step, which is not written again.
        remove_leftovers(path, any_name=True)
        return path

    def save_state(self, model: keras.Model, metadata: Mapping) -> None:
        """Writes the full state; the old state becomes `state.previous.npz`.

        Args:
            model: Compiled `keras.Model`.
            metadata: Dict of further values, which JSON can hold.
        """
        arrays, paths = {}, {}
        for group, variables in _variables(model).items():
            paths[group] = [variable.path for variable in variables]
            for number, variable in enumerate(variables):
                # NumPy has no bfloat16 for files; float32 holds the half precisions exactly.
                is_half = variable.dtype in ("bfloat16", "float16")
                dtype = "float32" if is_half else variable.dtype
                arrays[f"{group}/{number}"] = variable.numpy().astype(dtype)
        text = json.dumps({"format": 1, "paths": paths, "metadata": dict(metadata)})
        arrays[_METADATA] = np.frombuffer(text.encode("utf-8"), dtype="uint8")
        with atomic_write(self.state_path) as temporary:
            with open(temporary, "wb") as file:
                np.savez(file, **arrays)
            if self.state_path.exists():
                os.replace(self.state_path, self.previous_state_path)

    def check_room(self, model: keras.Model) -> None:
        """Raises a `UserError` with the sizes if the disk has no room for a state of the model.

        Args:
            model: Compiled `keras.Model`.
        """
        folder = next(path for path in self.directory.absolute().parents if path.exists())
        disk = shutil.disk_usage(folder)
        variables = itertools.chain(*_variables(model).values())
        needed = sum(4 * math.prod(variable.shape) for variable in variables)
        if disk.total and disk.free < needed:  # some network disks report nothing
            raise UserError(
                f"No room for a checkpoint in {str(folder)!r}: it needs {needed / 1e6:,.1f} MB and "
                f"{disk.free / 1e6:,.1f} MB are free."
            )

    def exists(self) -> bool:
        """Returns whether there is a state, damaged or not."""
        return self.state_path.exists() or self.previous_state_path.exists()

    def metadata(self) -> dict | None:
        """Returns the metadata of the newest readable state; None without one."""
        for path in (self.state_path, self.previous_state_path):
            # `restore_state` reports any damage.
            with contextlib.suppress(Exception), _open_state(path) as (content, _):
                return dict(content["metadata"])
        return None

    def restore_state(self, model: keras.Model) -> dict | None:
        """Sets all variables of a model and its optimizer to the newest readable state.

        Weight files of later steps are removed: the training will write them again.

        Args:
            model: Compiled `keras.Model` of the same architecture.

        Returns:
            The metadata that was saved, or None if no state was ever saved.

        Raises:
            UserError: If no state can be read, or it is of another model.
        """
        if not self.exists():
            return None
        for path in filter(Path.exists, (self.state_path, self.previous_state_path)):
            try:
                paths, arrays, metadata = _read_state(path)
            except Exception as error:  # the zip format, NumPy and JSON each raise their own
                _LOGGER.warning("Training state %s is damaged (%s).", path, error)
                continue
            _assign(model, paths, arrays, path)
            for file in self.weight_files():
                if step_of(file) > metadata.get("step", step_of(file)):
                    file.unlink(missing_ok=True)
            return metadata
        advice = (
            ": the training cannot go on. Its weight files can still be averaged, with "
            "`keras-transformer average FILE ... --output FILE`"
        )
        raise UserError(
            f"The training state in {str(self.directory)!r} is damaged, and so is its copy"
            f"{advice if self.weight_files() else ''}."
        )


def step_of(path: str | os.PathLike) -> int:
    """Returns the step in a name such as `step-00001234.weights.h5`, -1 if the name has none."""
    number = Path(path).name.removeprefix("step-").removesuffix(WEIGHTS_SUFFIX)
    return int(number) if number.isdigit() else -1


def _variables(model) -> dict[str, list]:
    optimizer = model.optimizer
    if optimizer is None:
        raise ValueError("The model must be compiled before its training state is saved.")
    if not optimizer.built:
        with model_scope(model):
            optimizer.build(model.trainable_variables)
    return {"model": list(model.variables), "optimizer": list(optimizer.variables)}


@contextlib.contextmanager
def _open_state(path):
    """Yields the content of a state's metadata, and the open file with its arrays."""
    with np.load(path, allow_pickle=False) as file:
        # Ours are not compressed: a few bytes could unpack to any number of them.
        if sum(member.file_size for member in file.zip.infolist()) > path.stat().st_size:
            raise ValueError("its arrays are larger than the file")
        yield json.loads(file[_METADATA].tobytes().decode("utf-8")), file


def _read_state(path):
    """Returns the paths of the variables by group, the arrays, and the metadata of the caller."""
    with _open_state(path) as (content, file):
        if not isinstance(content, dict) or content.get("format") != 1:
            raise ValueError("unknown format")
        arrays = {name: file[name] for name in file.files if name != _METADATA}
    paths, metadata = content["paths"], content["metadata"]
    expected = {f"{group}/{number}" for group in paths for number in range(len(paths[group]))}
    if expected != arrays.keys() or {array.dtype.kind for array in arrays.values()} - set("biuf"):
        raise ValueError("variables are missing")
    if not isinstance(metadata, dict):
        raise ValueError("the metadata are missing")
    return paths, arrays, metadata


def _assign(model, paths, arrays, file):
    pairs: list[tuple] = []
    for group, variables in _variables(model).items():
        names = list(map(_name, paths.get(group, ())))
        values = [arrays[f"{group}/{number}"] for number in range(len(names))]
        if sorted(names) == sorted(_name(variable.path) for variable in variables):
            # Variables of the same name stay in their order.
            order = sorted(range(len(names)), key=names.__getitem__)
            values = [values[number] for number in order]
            variables = sorted(variables, key=lambda variable: _name(variable.path))
        if [value.shape for value in values] != [tuple(variable.shape) for variable in variables]:
            raise UserError(
                f"{str(file)!r} is of another model: it has {len(values)} variables of the "
                f"{group}, not {len(variables)}, or variables of other shapes"
            )
        pairs += zip(variables, values, strict=True)
    for variable, value in pairs:
        variable.assign(value)


def _name(path: str) -> str:
    """Returns a name of a variable that is the same in all versions.

    The kernels in `query/kernel` and `embedding/embedding/embeddings` were called `query_kernel`
    and `embedding/embeddings` in version 1.0. Optimizers replace each slash by an underscore.
    """
    return path.replace("/", "_").replace("embedding_embedding_embeddings", "embedding_embeddings")


@contextlib.contextmanager
def training_lock(directory: Path) -> Iterator[None]:
    """Locks a model directory for one training; creates it, and removes it if it stays empty."""
    if directory.exists() and not directory.is_dir():
        raise UserError(f"The output must be a directory. Received: output={str(directory)!r}")
    created = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / LOCK_FILE
    # The system releases the lock of a killed process. A link at the path is not followed.
    lock = FileLock(path, blocking=False, on_acquired=_write_holder)
    try:
        try:
            lock.acquire()
        except Timeout as error:
            holder = ""
            with contextlib.suppress(OSError):
                holder = path.read_text(encoding="utf-8").strip()
            raise UserError(
                f"{str(directory)!r} is in use by a training that is running: "
                f"{holder or 'another process'}. Wait for its end, or choose another output "
                "directory."
            ) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # Windows removes no open file
                path.unlink()
            lock.release()
    finally:
        with contextlib.suppress(OSError):
            for folder in created:
                folder.rmdir()


@contextlib.contextmanager
def shared_lock(output: Path) -> Iterator[None]:
    """Locks the directory in process 0, for all processes; checks that the others see it."""
    group = process_group()
    with training_lock(output) if group.is_first else contextlib.nullcontext():
        holder = group.in_first(_lock_holder, output)
        seen = group.gather(group.is_first or _sees_lock(output, holder))
        if not all(seen):
            raise UserError(
                "All processes need the output directory of process 0, on a shared disk. Received: "
                f"{str(output)!r}, which process {seen.index(False)} does not see"
            )
        yield


def _lock_holder(output):
    with contextlib.suppress(OSError):
        return (output / LOCK_FILE).read_text("utf-8")


def _sees_lock(output, holder):
    deadline = time.monotonic() + _SECONDS_TO_SEE
    while _lock_holder(output) != holder and time.monotonic() < deadline:
        time.sleep(0.1)
    return _lock_holder(output) == holder


def _write_holder(file_descriptor):
    started = time.strftime("%Y-%m-%d %H:%M")
    text = f"process {os.getpid()} on {socket.gethostname()}, since {started}\n"
    with contextlib.suppress(OSError):  # a full disk has no room for it
        os.ftruncate(file_descriptor, 0)
        os.write(file_descriptor, text.encode())
