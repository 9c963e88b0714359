"""The check of the tests tells what a good test notices and a weak one does not."""

import re
import sys
import textwrap

import pytest

pytest.importorskip("cosmic_ray")
if sys.platform != "linux":
    pytest.skip("forks, and limits memory, as Linux does", allow_module_level=True)

from tests.mutation.mutants import draw
from tests.mutation.runner import Job, run_all

MODULE, TESTS = "toy/ages.py", "tests/test_ages.py"
# The last of one item is the first.
SURVIVORS = [(18, -1), (17, 0), (19, 0)]
FILES = {
    MODULE: """
        OF_AGE = (18,)[0]

        def is_adult(age):
            return age >= OF_AGE
        """,
    TESTS: """
        from toy.ages import is_adult

        def test_the_old():
            assert is_adult(80)
        """,
}


@pytest.fixture
def root(tmp_path):
    for name, content in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(content))
    return tmp_path


def outcomes(root, jobs):
    """Dict of the changed source, None for no change, to outcomes."""
    runs = run_all(jobs, root, ("toy", "tests"), workers=2, preload=("pytest", "hypothesis"))
    return {job.source: outcome for job, outcome in runs}


@pytest.mark.slow
def test_survivors_are_what_the_tests_do_not_notice(root):
    mutants, total = draw(root, [MODULE], size=100, seed=0)
    assert len(mutants) == total == 11
    sources = [None, *(mutant.source for mutant in mutants)]
    found = outcomes(root, [Job(MODULE, (TESTS,), 60, source) for source in sources])
    assert found[None].status == "survived"
    lines = {"killed": set(), "survived": set(), "incompetent": set()}
    for mutant in mutants:
        outcome = found[mutant.source]
        assert outcome.reason.startswith(TESTS if outcome.status == "killed" else "")
        changed = re.search(r"^\+([^+].*)", mutant.diff, re.MULTILINE).group(1)
        lines[outcome.status].add(changed.replace(" ", ""))
    unnoticed = {f"returnage{operator}OF_AGE" for operator in (">", "!=", "isnot")}
    assert lines["survived"] == {*unnoticed, *(f"OF_AGE=({n},)[{i}]" for n, i in SURVIVORS)}
    assert lines["incompetent"] == {"OF_AGE=(18,)[1]"}  # An index error where it is imported.
    assert len(lines["killed"]) == 4


def test_the_seed_decides_what_is_drawn(root):
    first, second, other = (draw(root, [MODULE], 5, seed)[0] for seed in (1, 1, 2))
    assert first == second
    assert first != other and len(first) == len(other) == 5


@pytest.mark.slow
def test_an_endless_loop_is_killed_and_the_repository_stays_as_it_was(root):
    endless = "def is_adult(age):\n    while True:\n        pass\n"
    [outcome] = outcomes(root, [Job(MODULE, (TESTS,), 2, endless)]).values()
    assert (outcome.status, outcome.reason) == ("killed", "timeout")
    assert (root / MODULE).read_text() == textwrap.dedent(FILES[MODULE])
