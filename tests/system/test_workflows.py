"""Workflows in .github/workflows pin their actions and packages, and run every folder of tests."""

import pathlib
import re
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORKFLOWS = {
    path.name: path.read_text("utf-8") for path in (ROOT / ".github" / "workflows").iterdir()
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_actions_are_commits_and_find_no_token():
    for workflow in WORKFLOWS.values():
        actions = re.findall(r"\buses:(.*)", workflow)
        for action in actions:
            assert re.fullmatch(r" [\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action
        checkouts = sum("actions/checkout@" in action for action in actions)
        assert checkouts and workflow.count("persist-credentials: false") == checkouts
        assert "\npermissions:\n  contents: read\n" in workflow


def test_all_versions_of_python_and_all_folders_of_tests_are_tested():
    versions = [x.split(" :: ")[2] for x in PROJECT["classifiers"] if ":: Python ::" in x]
    assert f"python: {versions}".replace("'", '"') in WORKFLOWS["ci.yml"]
    folders = {path.name for path in (ROOT / "tests").iterdir() if [*path.glob("test_*.py")]}
    listed = set(re.findall(r"tests/(\w+)", WORKFLOWS["nightly.yml"]))
    # They are for `.ci/run`, which has what they need.
    assert folders - listed == {"backends", "bridges"}
