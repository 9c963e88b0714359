"""Files are written aside and renamed, so that an interruption loses nothing."""

import ast
import errno
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
    def write(path, name):
        if kind is atomic_folder:
            path.mkdir()
            path = path / name
        path.write_text(name)

    def read():
        return target.read_text() if target.is_file() else [path.name for path in target.iterdir()]

    target = tmp_path / "made" / "result"
    for content in ("first", "second"):
        with kind(target) as aside:
            assert aside.parent == target.parent and aside.name.endswith("result")
            write(aside, content)
        assert read() == (content if kind is atomic_write else [content])
    with pytest.raises(KeyboardInterrupt), kind(target) as aside:
        write(aside, "third")
        raise KeyboardInterrupt
    with pytest.raises(FileNotFoundError), kind(target):
        pass  # nothing is written
    assert read() == ("second" if kind is atomic_write else ["second"])
    assert list(target.parent.iterdir()) == [target]


def test_the_error_of_a_full_disk_names_the_file(tmp_path):
    with pytest.raises(OSError, match="No space left on device: '.*result.txt'"):
        with atomic_write(tmp_path / "result.txt") as temporary, open(temporary, "wb"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert not list(tmp_path.iterdir())


def test_atomic_write_has_the_content_on_the_disk_before_it_renames(tmp_path, monkeypatch):
    path = tmp_path / "result.txt"
    events = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda f: (events.append(os.fstat(f).st_size), sync(f)))
    monkeypatch.setattr(os, "replace", lambda *names: (events.append("renamed"), replace(*names)))
    with atomic_write(path) as temporary:
        temporary.write_text("seven b")
    assert events == [7, "renamed"]
    assert path.read_text() == "seven b"


def test_old_leftovers_of_the_same_name_are_removed_and_no_others(tmp_path):
    old = time.time() - 2 * 3600
    removed = tmp_path / ".writing-0123456789ab-result.txt"
    others = [".writing-0123456789ab-other.txt", ".writing-0123456789ab-my-result.txt",
              "x.writing-0123456789ab-result.txt", ".writing-ffffffffffff-result.txt"]  # fmt: skip
    for path in (removed, *(tmp_path / name for name in others)):
        path.write_text("half")
        if path.name != others[-1]:  # which is still being written
            os.utime(path, (old, old))
    folder = tmp_path / ".writing-eeeeeeeeeeee-result.txt"
    folder.mkdir()
    (folder / "growing").write_text("new in an old folder")
    os.utime(folder, (old, old))
    for is_old in (False, True):
        if is_old:
            os.utime(folder / "growing", (old, old))
        with atomic_write(tmp_path / "result.txt") as temporary:
            temporary.write_text("one")
        kept = {path.name for path in tmp_path.iterdir()}
        assert kept == {"result.txt", *others, *([] if is_old else [folder.name])}


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

def listing(folder):
    return sorted((path, path.lstat().st_mtime_ns) for path in folder.rglob("*"))

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
    before = listing(target)
    paths = {name: current_file(target, name) for name in NAMES}
    read = {name: path.read_text() for name, path in paths.items() if path.exists()}
    assert listing(target) == before, "reading has changed something"
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


def test_a_link_to_a_folder_stays_and_a_link_to_a_file_is_replaced(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "old.txt").write_text("old")
    for name, target in [("file", "data/old.txt"), ("new", "data/new.txt"), ("folder", "data/f")]:
        (tmp_path / name).symlink_to(target)
    for name in ("file", "new"):
        with atomic_write(tmp_path / name) as temporary:
            temporary.write_text("written")
    for content in ("first", "second"):
        with atomic_folder(tmp_path / "folder") as temporary:
            temporary.mkdir()
            (temporary / content).write_text("")
        with atomic_files(tmp_path / "folder") as temporary:
            (temporary / "more").write_text("")
    assert (tmp_path / "folder").is_symlink()
    files = [path for path in (tmp_path / "data").iterdir() if path.is_file()]
    assert {path.name: path.read_text() for path in files} == {"old.txt": "old"}
    for name in ("file", "new"):
        assert not (tmp_path / name).is_symlink()
        assert (tmp_path / name).read_text() == "written"
    assert sorted(path.name for path in (tmp_path / "data" / "f").iterdir()) == ["more", "second"]


@pytest.mark.parametrize("victim", ["full", "empty", "missing"])
def test_a_link_in_place_of_the_complete_files_is_not_followed(tmp_path, victim):
    """A folder from elsewhere may hold `.replacing -> ../victim`."""
    target = tmp_path / "target"
    target.mkdir()
    (target / "model.txt").write_text("old")
    if victim != "missing":
        (tmp_path / "victim").mkdir()
    if victim == "full":
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


def test_a_leftover_that_is_a_link_is_removed_and_what_it_points_to_not_even_listed(
    tmp_path, monkeypatch
):
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "thesis.txt").write_text("years of work")
    link = tmp_path / ".writing-0123456789ab-result.txt"
    link.symlink_to("victim")
    os.utime(link, (1e9, 1e9), follow_symlinks=False)
    monkeypatch.setattr(pathlib.Path, "rglob", lambda path, _: pytest.fail(f"{path} is listed"))
    files.remove_leftovers(tmp_path / "result.txt")
    assert not link.is_symlink()
    assert (tmp_path / "victim" / "thesis.txt").read_text() == "years of work"


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


def test_files_that_stay_or_change_all_the_time_are_not_read_for_ever(tmp_path):
    def read(changes):
        calls.append(1)
        if not changes:
            raise UserError("damaged")
        with atomic_files(tmp_path) as aside:
            (aside / "config.txt").write_text("new")

    for changes, message in ((False, "damaged"), (True, "are replaced faster than they can be")):
        calls = []
        with pytest.raises(UserError, match=message):
            files.read_unchanged([tmp_path], "config.txt", lambda changes=changes: read(changes))
        assert len(calls) == (10 if changes else 1)


@pytest.mark.parametrize("name", ["x" * 255, "ß" * 127, "a\\b\n c:", "x" * 251 + ".txt"])
def test_names_as_long_and_odd_as_the_file_system_allows(tmp_path, name):
    path = tmp_path / name
    for content in ("one", "two"):
        with atomic_write(path) as temporary:
            assert temporary.name.endswith(name[-4:])
            temporary.write_text(content)
    assert path.read_text() == "two"
    assert [item.name for item in tmp_path.iterdir()] == [name]


def test_a_folder_in_the_way_is_named_and_nothing_changes(tmp_path):
    (tmp_path / "model.txt").mkdir()
    with pytest.raises(IsADirectoryError, match="model.txt"), atomic_files(tmp_path) as aside:
        (aside / "model.txt").write_text("new")
        (aside / "words.txt").write_text("new")
    assert [path.name for path in tmp_path.iterdir()] == ["model.txt"]
