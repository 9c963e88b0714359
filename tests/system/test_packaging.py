"""What is published: an sdist with everything needed to build and test, a wheel with the package.

Both are built from a copy of the repository in which files lie about that belong in neither.
"""

import ast
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

import keras_transformer

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILES = ["CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in", "README.md", "mkdocs.yml"]
FILES += ["pyproject.toml", "setup.py"]
FOLDERS = ["benchmarks", "docs", "examples", "keras_transformer", "tests"]
FOREIGN = [
    ".env",
    "notes.txt",
    "runs/en-de/model.weights.h5",
    "saved_models/en-de/saved_model.pb",
    "scratch/module.py",
    "keras_transformer/notes.txt",
    "keras_transformer/layers/attention.py.orig",
    "tests/layers/failure.log",
]
VERSION = keras_transformer.__version__
NAME = f"keras_transformer_toolkit-{VERSION}"


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


def run(*command, **kwargs):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment.update(kwargs.pop("env", {}))
    result = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=600, **kwargs
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    return result.stdout


def require_build_tools():
    # Distributions, not modules: `pip install .` leaves a folder named build/ that imports as one.
    installed = {distribution.name for distribution in importlib.metadata.distributions()}
    if "build" not in installed:
        pytest.skip("needs build: pip install '.[build]'")
    if "setuptools" not in installed:
        pytest.skip("needs setuptools")
    major, minor = importlib.metadata.version("setuptools").split(".")[:2]
    if "wheel" not in installed and (int(major), int(minor)) < (70, 1):
        pytest.skip("needs wheel, or setuptools 70.1")


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """Paths of the sdist and of the wheel that is built from it."""
    require_build_tools()
    copy = tmp_path_factory.mktemp("repository")
    for name in FILES:
        shutil.copy(ROOT / name, copy / name)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("*.egg-info"))
    for name in FOREIGN:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text("This belongs in no distribution.")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist", cwd=copy)
    (sdist,), (wheel,) = (copy / "dist").glob("*.tar.gz"), (copy / "dist").glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def in_sdist(distributions):
    with tarfile.open(distributions[0]) as archive:
        names = [member.name for member in archive.getmembers() if member.isfile()]
    assert all(name.startswith(f"{NAME}/") for name in names)
    return {name.removeprefix(f"{NAME}/") for name in names}


@pytest.fixture(scope="module")
def in_wheel(distributions):
    with zipfile.ZipFile(distributions[1]) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_the_package_and_nothing_else(distributions, in_wheel):
    assert distributions[1].name == f"{NAME}-py3-none-any.whl"
    metadata = {name for name in in_wheel if name.startswith(f"{NAME}.dist-info/")}
    assert in_wheel - metadata == PACKAGE
    names = {name.rpartition("/")[2] for name in metadata}
    assert names == {"LICENSE", "METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt"}


def test_the_sdist_holds_what_building_and_testing_need_and_nothing_else(in_sdist):
    expected = {
        *FILES,
        *PACKAGE,
        *relative_files("tests", "benchmarks", suffixes={".py"}),
        *relative_files("tests", suffixes={".gld", ".prm", ".rsl", ".tst"}),
        *relative_files("docs", suffixes={".css", ".ipynb", ".md", ".png", ".py"}),
        *relative_files("examples", suffixes={".md", ".py", ".sh"}),
    }
    made = {name for name in in_sdist if ".egg-info/" in name} | {"PKG-INFO", "setup.cfg"}
    assert in_sdist - made == expected


def test_every_install_command_of_docs_and_messages_works_in_a_clone():
    """`keras-transformer` is another project on the package index, as is what it might be given."""
    extras = ast.literal_eval(
        re.search(r"extras_require=(\{.*?\n    \})", (ROOT / "setup.py").read_text(), re.S)[1]
    )
    paths = ["CONTRIBUTING.md", "README.md"]
    paths += [*relative_files("docs", "examples", suffixes={".md", ".ipynb", ".py"})]
    paths += [*PACKAGE, *relative_files("benchmarks", suffixes={".py"})]
    texts = {path: (ROOT / path).read_text("utf-8") for path in paths}
    found = [(path, what) for path, text in texts.items()
             for what in re.findall(r"pip install (?:-\S+ )*'([^']+)'", text)]  # fmt: skip
    assert len(found) > 5
    for path, what in found:
        names = re.fullmatch(r"\.\[(.+)\]", what)[1].split(",")
        assert all(name in extras or name.startswith("{") for name in names), (path, what)
    for path, text in texts.items():
        assert not re.search(r"pip install \S*keras.transformer", text), path


def test_the_license_is_the_repositorys(distributions, in_wheel):
    (name,) = (name for name in in_wheel if name.endswith("/LICENSE"))
    with zipfile.ZipFile(distributions[1]) as archive:
        assert archive.read(name) == (ROOT / "LICENSE").read_bytes()


def test_the_installed_wheel_works_far_from_the_repository(distributions, tmp_path):
    target, empty = tmp_path / "target", tmp_path / "empty"
    empty.mkdir()
    run(
        *(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet"),
        *("--target", target, distributions[1]),
    )
    program = (
        "import importlib.metadata as metadata, keras_transformer as package\n"
        "from keras_transformer import layers, models\n"
        "distribution = metadata.distribution('keras-transformer-toolkit')\n"
        "print(package.__file__, package.__version__, distribution.version)\n"
        "(command,) = distribution.entry_points\n"
        "print(command.name, command.load().__module__)"
    )
    output = run(sys.executable, "-c", program, cwd=empty, env={"PYTHONPATH": str(target)})
    first, second = output.splitlines()[-2:]
    assert first.split() == [str(target / "keras_transformer/__init__.py"), VERSION, VERSION]
    assert second.split() == ["keras-transformer", "keras_transformer.cli"]
    script = target / "bin" / ("keras-transformer.exe" if os.name == "nt" else "keras-transformer")
    shown = run(script, "--help", cwd=empty, env={"PYTHONPATH": str(target)})
    assert "quickstart" in shown
