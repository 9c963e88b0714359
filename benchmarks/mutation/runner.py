"""Runs tests on changed modules, several at once, each in a copy of the repository.

Every run is a process forked from one that has imported Keras and its backend, but nothing of
the repository: what takes seconds is done once.
"""

import dataclasses
import importlib
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import re
import shutil
import signal
import sys
import tempfile
import time

_INCOMPETENT = 70  # An exit status that pytest does not have.
_MEMORY = 12 * 2**30  # A mutant may ask for an array without end.


@dataclasses.dataclass(frozen=True)
class Job:
    """Tests to run with one module changed."""

    module: str  # path from the root
    tests: tuple  # paths from the root, in the order to run them in until one fails
    timeout: float  # seconds, after which the tests count as failed
    source: str | None = None  # the whole changed module; None for no change


@dataclasses.dataclass(frozen=True)
class Outcome:
    """`status`: "survived" where all tests passed, "killed", or "incompetent" where none could run:
    the module itself cannot be imported. `reason`: the test that failed, or "timeout"."""

    status: str
    reason: str
    seconds: float


def run_all(jobs, root, copied, workers, preload):
    """Yield `(job, outcome)` in the order in which they end.

    Args:
        jobs: `Job`s.
        root: The repository.
        copied: The names in it that the tests need.
        workers: How many run at once.
        preload: Names of modules to import before forking.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    jobs, running = iter(jobs), {}
    with tempfile.TemporaryDirectory() as folder:
        idle = [_copy(root, copied, pathlib.Path(folder) / str(i)) for i in range(workers)]
        try:
            while True:
                while idle and (job := next(jobs, None)) is not None:
                    run = _Run(job, idle.pop(), context)
                    running[run.process.sentinel] = run
                if not running:
                    return
                multiprocessing.connection.wait(running, timeout=1)
                for sentinel, run in list(running.items()):
                    outcome = run.outcome()
                    if outcome is not None:
                        del running[sentinel]
                        idle.append(run.copy)
                        yield run.job, outcome
        finally:
            for run in running.values():
                run.stop()


def _copy(root, names, folder):
    for name in names:
        source = pathlib.Path(root) / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, folder / name, ignore=ignored)
        else:
            shutil.copy(source, folder / name)
    return folder


class _Run:
    """One job under way in its copy of the repository."""

    def __init__(self, job, copy, context):
        self.job, self.copy = job, copy
        self._path = copy / job.module
        self._original = self._path.read_text(encoding="utf-8")
        if job.source is not None:
            self._path.write_text(job.source, encoding="utf-8")
        self._begin = time.monotonic()
        self.process = context.Process(target=_test, args=(str(copy), job.module, job.tests))
        self.process.start()

    def outcome(self):
        """The `Outcome`, or None while the tests run."""
        seconds = time.monotonic() - self._begin
        is_late = seconds > self.job.timeout
        if self.process.is_alive() and not is_late:
            return None
        self.stop()
        if is_late:
            return Outcome("killed", "timeout", seconds)
        status = {0: "survived", _INCOMPETENT: "incompetent"}.get(self.process.exitcode, "killed")
        output = _log(self.copy).read_text(encoding="utf-8", errors="replace")
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
        reason = failed.group(1) if failed else f"exit status {self.process.exitcode}"
        return Outcome(status, reason if status == "killed" else "", seconds)

    def stop(self):
        try:  # The tests' own processes as well.
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            self.process.kill()  # It has ended, or not yet begun its own group.
        self.process.join()
        self._path.write_text(self._original, encoding="utf-8")


def _log(copy):
    return copy.with_suffix(".log")


def _test(copy, module, tests):
    """Run the tests of a copy of the repository; the exit status is pytest's."""
    os.setsid()
    log = os.open(_log(pathlib.Path(copy)), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    import resource

    import pytest

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    root = os.getcwd()
    os.chdir(copy)
    sys.path[:] = [copy, *(path for path in sys.path if path not in ("", root))]
    # A changed file of the same size and second would be taken for the compiled one.
    sys.dont_write_bytecode = True
    os.environ.update(PYTHONPATH=copy, PYTHONDONTWRITEBYTECODE="1")
    for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
        del sys.modules[name]  # Those of the root.
    try:
        importlib.import_module(module.removesuffix(".py").replace("/", "."))
    except BaseException:
        os._exit(_INCOMPETENT)
    status = pytest.main(["-x", "-q", "--tb=short", "-p", "no:cacheprovider", *tests])
    sys.stdout.flush()
    os._exit(status)
