"""Makes distributions that are equal to the byte; pyproject.toml has everything else."""

import gzip
import os
import pathlib
import tarfile

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.sdist import sdist

# The date of all files in the distributions, in place of the hour of the build: 2026-01-01.
DATE = int(os.environ.setdefault("SOURCE_DATE_EPOCH", "1767225600"))


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


setup(cmdclass={"bdist_wheel": ReproducibleWheel, "sdist": ReproducibleSdist})
