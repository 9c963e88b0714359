"""What is published: an sdist with everything needed to build and test, a wheel with the package.

Both are built from a copy of the repository in which files lie about that belong in neither.
"""

import functools
import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

import keras_transformer

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Files of a clone that the sdist leaves out: both are of use with git only.
LEFT_OUT = {".ci/run", ".gitignore"}
FOREIGN = """
.env notes.txt runs/en-de/model.weights.h5 saved_models/en-de/saved_model.pb scratch/module.py
docs/.ipynb_checkpoints/tutorial-checkpoint.ipynb keras_transformer/notes.txt
keras_transformer/layers/attention.py.orig tests/layers/failure.log
""".split()
VERSION = keras_transformer.__version__
NAME = f"keras_transformer_toolkit-{VERSION}"
METADATA = "keras_transformer_toolkit.egg-info"


def relative_files(*folders, suffixes):
    """Paths of the repository's files, as text, relative to it."""
    return {
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in suffixes and not {"__pycache__", ".ipynb_checkpoints"} & {*path.parts}
    }


PACKAGE = relative_files("keras_transformer", suffixes={".html", ".py", ".toml"})
PACKAGE.add("keras_transformer/py.typed")


@functools.cache
def files_of_a_commit(*options):
    """Paths of the files that git tracks, and with `--others`, of those that it does not ignore."""
    if not (ROOT / ".git").exists() or not shutil.which("git"):
        pytest.skip("needs git and a clone")
    output = run("git", "ls-files", "-z", "--cached", *options, "--exclude-standard", cwd=ROOT)
    return {name for name in output.split("\0") if name and (ROOT / name).exists()}


def run(*command, **kwargs):
    left_out = ("PYTHONPATH", "SOURCE_DATE_EPOCH")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    environment.update(kwargs.pop("env", {}))
    result = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=600, **kwargs
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    return result.stdout


def copy_of_the_repository(folder):
    for name in files_of_a_commit("--others"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


def build(folder, *options, **kwargs):
    """Returns the paths of the sdist and of the wheel."""
    run(sys.executable, "-m", "build", "--no-isolation", *options, cwd=folder, **kwargs)
    (sdist,), (wheel,) = (folder / "dist").glob("*.tar.gz"), (folder / "dist").glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """Paths of the sdist and of the wheel that is built from it."""
    # Distributions, not modules: `pip install .` leaves a folder named build/ that imports as one.
    installed = {one.name: one.version for one in importlib.metadata.distributions()}
    if "build" not in installed or int(installed.get("setuptools", "0").split(".")[0]) < 77:
        pytest.skip("needs build and setuptools 77: pip install '.[build]'")
    copy = copy_of_the_repository(tmp_path_factory.mktemp("repository"))
    for name in [*FOREIGN, f"{METADATA}/SOURCES.txt"]:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text("This belongs in no distribution.")
    # As an earlier build leaves it, whose sdist had more files.
    (copy / METADATA / "SOURCES.txt").write_text("\n".join(FOREIGN))
    return build(copy)


def test_the_wheel_holds_the_package_and_nothing_else(distributions):
    assert distributions[1].name == f"{NAME}-py3-none-any.whl"
    with zipfile.ZipFile(distributions[1]) as archive:
        in_wheel = set(archive.namelist())
    metadata = {name for name in in_wheel if name.startswith(f"{NAME}.dist-info/")}
    assert in_wheel - metadata == PACKAGE
    names = {name.rpartition("/")[2] for name in metadata}
    assert names == {"LICENSE", "METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt"}


def test_the_sdist_holds_every_tracked_file_and_nothing_else(distributions):
    with tarfile.open(distributions[0]) as archive:
        names = [member.name for member in archive.getmembers() if member.isfile()]
    in_sdist = {name.removeprefix(f"{NAME}/") for name in names}
    made = {name for name in in_sdist if name.startswith(f"{METADATA}/")}
    found = in_sdist - made - {"PKG-INFO", "setup.cfg"}
    assert not files_of_a_commit() - LEFT_OUT - found
    assert not found - files_of_a_commit("--others")
    assert not found & LEFT_OUT


def test_the_installed_wheel_works_far_from_the_repository(distributions, tmp_path):
    target, empty = tmp_path / "target", tmp_path / "empty"
    empty.mkdir()
    install = "-m pip install --no-deps --no-index --quiet --target".split()
    run(sys.executable, *install, target, distributions[1])
    program = (
        "import importlib.metadata as metadata, keras_transformer as package\n"
        "distribution = metadata.distribution('keras-transformer-toolkit')\n"
        "print(package.__file__, package.__version__, distribution.version)\n"
        "(command,) = distribution.entry_points\n"
        "print(command.name, command.load().__module__)"
    )
    output = run(sys.executable, "-c", program, cwd=empty, env={"PYTHONPATH": str(target)})
    first, second = output.splitlines()[-2:]
    assert first.split() == [str(target / "keras_transformer/__init__.py"), VERSION, VERSION]
    assert second.split() == ["keras-transformer", "keras_transformer.cli"]
    script = target / "bin" / "keras-transformer"
    assert "quickstart" in run(script, "--help", cwd=empty, env={"PYTHONPATH": str(target)})
