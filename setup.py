"""Installs the keras_transformer library and its `keras-transformer` command."""

import gzip
import os
import pathlib
import re
import tarfile

from setuptools import find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.sdist import sdist

ROOT = pathlib.Path(__file__).parent
# The date of all files in the distributions, in place of the hour of the build: 2026-01-01.
DATE = int(os.environ.setdefault("SOURCE_DATE_EPOCH", "1767225600"))


def read_version() -> str:
    """The version stands once, in keras_transformer/__init__.py, and is read without importing."""
    source = (ROOT / "keras_transformer" / "__init__.py").read_text(encoding="utf-8")
    return re.search(r'^__version__ = "([^"]+)"$', source, re.MULTILINE).group(1)


class ReproducibleSdist(sdist):
    """The same files give the same bytes: without the builder's clock, name and umask."""

    def make_archive(self, base_name, format, root_dir=None, base_dir=None, owner=None, group=None):
        if format != "gztar":
            return super().make_archive(base_name, format, root_dir, base_dir, owner, group)
        path = f"{base_name}.tar.gz"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with (
            gzip.GzipFile(path, "wb", mtime=DATE) as stream,
            tarfile.open(fileobj=stream, mode="w") as archive,
        ):
            archive.add(base_dir, filter=self._without_traces)
        return path

    @staticmethod
    def _without_traces(member):
        member.mode = 0o755 if member.mode & 0o100 else 0o644
        member.mtime = DATE
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member


class ReproducibleWheel(bdist_wheel):
    """Writes files with the same modes under every umask; `SOURCE_DATE_EPOCH` sets their dates."""

    def write_wheelfile(self, *args, **kwargs):
        super().write_wheelfile(*args, **kwargs)  # The last file before the archive.
        for path in pathlib.Path(self.bdist_dir).rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)


setup(
    cmdclass={"bdist_wheel": ReproducibleWheel, "sdist": ReproducibleSdist},
    # "keras-transformer" is another project on the package index.
    name="keras-transformer-toolkit",
    version=read_version(),
    description="The Transformer of 'Attention Is All You Need' as Keras layers, and as a command "
    "that trains, evaluates, translates and exports.",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="The keras_transformer authors",
    license="Apache-2.0",
    license_files=["LICENSE"],
    packages=find_packages(include=["keras_transformer", "keras_transformer.*"]),
    package_data={"keras_transformer": ["py.typed", "evaluation/*.html", "**/*.toml"]},
    python_requires=">=3.11,<3.14",
    # Lower bounds are the versions the tests ran with.
    install_requires=[
        "filelock>=4.2",
        # tensorflow-datasets 4.9 imports it without declaring it.
        "importlib_resources>=6",
        "keras>=3.15",
        "matplotlib>=3.9",
        "num2words>=0.5.14",
        "numpy>=1.26",
        "sacrebleu>=2.6",
        "sacremoses>=0.1.1",
        "sentencepiece>=0.2",
        "tensorflow>=2.21",
        "tensorflow-datasets>=4.9",
        # No wheels for Windows: layers and models work there, text in the graph does not.
        'tensorflow-text>=2.21; sys_platform != "win32"',
        "tqdm>=4.67",
    ],
    extras_require={
        "test": ["hypothesis>=6.100", "pytest>=8", "pytest-xdist>=3.6"],
        "lint": ["ruff>=0.9"],
        # TensorFlow with NVIDIA's CUDA libraries, which have wheels for Linux.
        "gpu": ["tensorflow[and-cuda]>=2.21"],
        # Other backends. Ask for `torch==2.13.0` first and by itself where a CPU build will do:
        # `pip install torch` alone may bring several GB of CUDA packages.
        "jax": ["jax>=0.10"],
        "torch": ["torch>=2.13"],
        # Libraries whose weights `keras_transformer.bridges` reads and writes.
        "oracles": ["keras-hub>=0.32", "torch>=2.13", "transformers>=5"],
        # The messages of TensorFlow Serving's gRPC interface, for clients.
        "serving": ["tensorflow-serving-api>=2.21"],
        # What `keras-transformer export --format` needs, and what runs its exports.
        "ctranslate2": ["ctranslate2>=4.8"],
        "onnx": ["onnx>=1.23", "onnxruntime>=1.31", "tf2onnx>=1.17"],
        "litert": ["ai-edge-litert>=2.3"],
        # To build the site of the documentation and to run the notebook.
        "docs": [
            "ipykernel>=6",
            "latex2mathml>=3.81",
            "mkdocs-jupyter>=0.26",
            "mkdocs-material>=9.8",
            "mkdocstrings[python]>=1",
            "nbclient>=0.10",
            "nbformat>=5",
            "ruff>=0.9",  # it breaks the lines of long signatures
        ],
        # To build the distributions and sample mutants, as the tests do.
        "build": ["build>=1.2", "setuptools>=70.1"],
        "mutation": ["cosmic-ray>=8.7"],
    },
    entry_points={"console_scripts": ["keras-transformer=keras_transformer.cli:main"]},
    classifiers=[
        "Development Status :: 5 - Production/Stable",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: OS Independent",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Text Processing :: Linguistic",
        "Typing :: Typed",
    ],
)
