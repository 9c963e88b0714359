"""Files are written aside and renamed, so that an interruption loses nothing."""

import ast
import os
import pathlib
import subprocess
import sys
import time

import pytest

from keras_transformer import files
from keras_transformer.errors import UserError
from keras_transformer.files import atomic_files, atomic_folder, atomic_write


@pytest.mark.parametrize("kind", [atomic_write, atomic_folder])
def test_a_target_is_replaced_only_when_the_block_succeeds(tmp_path, kind):
    def write(aside, content):
        if kind is atomic_folder:
            aside.mkdir()
        path = aside / "file" if kind is atomic_folder else aside
        path.write_text(content)

    target = tmp_path / "made" / "result"
    file = target / "file" if kind is atomic_folder else target
    for content in ("first", "second"):
        with kind(target) as aside:
            write(aside, content)
        assert file.read_text() == content
    with pytest.raises(KeyboardInterrupt), kind(target) as aside:
        write(aside, "third")
        raise KeyboardInterrupt
    assert file.read_text() == "second"
    assert list(target.parent.iterdir()) == [target]


def test_old_leftovers_of_the_same_name_are_removed_and_no_others(tmp_path):
    old = time.time() - 2 * 3600
    removed = tmp_path / ".writing-0123456789ab-result.txt"
    others = [".writing-0123456789ab-my-result.txt", ".writing-ffffffffffff-result.txt"]
    for path in (removed, *(tmp_path / name for name in others)):
        path.write_text("half")
        if path.name != others[-1]:  # which is still being written
            os.utime(path, (old, old))
    folder = tmp_path / ".writing-eeeeeeeeeeee-result.txt"
    folder.mkdir()
    (folder / "growing").write_text("new in an old folder")
    os.utime(folder, (old, old))
    with atomic_write(tmp_path / "result.txt") as temporary:
        temporary.write_text("one")
    assert {path.name for path in tmp_path.iterdir()} == {"result.txt", *others, folder.name}


# The package's own start would bring Keras, which these processes do not need.
ALONE = """
import sys, types
package = types.ModuleType("keras_transformer")
package.__path__ = [sys.argv.pop(1)]
sys.modules["keras_transformer"] = package
"""
FOLDER = pathlib.Path(files.__file__).parent
KILLED = """
import os, pathlib, sys
from keras_transformer.files import atomic_files, atomic_folder, current_file, finish_replacing

NAMES = ("model.txt", "words.txt", "old.txt")

def content(folder):
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}

def save(kind, target):
    if kind == "files":
        with atomic_files(target, [target / "old.txt"]) as aside:
            (aside / "model.txt").write_text("new")
            (aside / "words.txt").write_text("new")
        return
    with atomic_folder(target) as aside:
        aside.mkdir()
        (aside / "model.txt").write_text("new")

def dying(function, calls):
    def call(*arguments, **keywords):
        if not calls:
            os._exit(9)
        calls.pop()
        return function(*arguments, **keywords)
    return call

kind, root = sys.argv[1], pathlib.Path(sys.argv[2])
found = []
for number in range(100):
    target = root / f"{number}" / "target"
    target.mkdir(parents=True)
    for name in NAMES:
        (target / name).write_text("old")
    child = os.fork()
    if not child:
        calls = [None] * number
        for name in ("mkdir", "rename", "replace", "unlink", "rmdir", "fsync"):
            setattr(os, name, dying(getattr(os, name), calls))
        save(kind, target)
        os._exit(0)
    is_killed = os.waitpid(child, 0)[1] != 0
    paths = {name: current_file(target, name) for name in NAMES}
    read = {name: path.read_text() for name, path in paths.items() if path.exists()}
    finish_replacing(target)
    if not target.exists():  # killed between two renames
        [target] = target.parent.glob(".replaced-*")
    else:
        assert read == content(target), (read, content(target))
    found.append(content(target))
    if not is_killed:
        break
print(repr(found))
"""


@pytest.mark.parametrize("kind", ["files", "folder"])
def test_a_kill_at_any_operation_leaves_the_old_state_or_the_new(tmp_path, kind):
    """Each of the operations on files in turn is the one that a process dies before."""
    command = [sys.executable, "-c", ALONE + KILLED, FOLDER, kind, tmp_path]
    found = ast.literal_eval(subprocess.check_output(command, text=True))
    old = dict.fromkeys(["model.txt", "words.txt", "old.txt"], "old")
    new = dict.fromkeys(["model.txt", "words.txt"] if kind == "files" else ["model.txt"], "new")
    assert found[0] == old and found[-1] == new
    assert len(found) > 5 and all(state in (old, new) for state in found), found


def test_a_link_in_place_of_the_complete_files_is_not_followed(tmp_path):
    """A folder from elsewhere may hold `.replacing -> ../victim`."""
    target = tmp_path / "target"
    target.mkdir()
    (target / "model.txt").write_text("old")
    (tmp_path / "victim").mkdir()
    for name in ("model.txt", "thesis.txt", "model.txt.obsolete"):
        (tmp_path / "victim" / name).write_text("years of work")
    (target / ".replacing").symlink_to("../victim")
    before = sorted(tmp_path.rglob("*"))
    assert files.current_file(target, "model.txt").read_text() == "old"
    assert sorted(tmp_path.rglob("*")) == before
    with atomic_files(target) as aside:
        (aside / "model.txt").write_text("new")
    assert [(path.name, path.read_text()) for path in target.iterdir()] == [("model.txt", "new")]
    before.remove(target / ".replacing")
    assert sorted(tmp_path.rglob("*")) == before


def test_files_that_are_replaced_while_they_are_read_are_read_again(tmp_path):
    names = ("config.txt", "words.txt")
    read, waiting = [], [["new", "newer"], ["newer"], []]

    def save(content):
        with atomic_files(tmp_path) as aside:
            for name in names:
                (aside / name).write_text(content)

    def read_both():
        config = files.current_file(tmp_path, names[0]).read_text()
        for content in waiting.pop(0):
            save(content)
        words = files.current_file(tmp_path, names[1]).read_text()
        read.append((config, words))
        if config != words:
            raise UserError("they do not fit each other")
        return config

    save("old")
    assert files.read_unchanged([tmp_path], names[0], read_both) == "newer"
    assert read == [("old", "newer"), ("newer", "newer"), ("newer", "newer")]
