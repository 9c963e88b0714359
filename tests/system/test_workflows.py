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


def test_the_constraints_pin_what_the_workflows_install():
    required = [*PROJECT["dependencies"]]
    for name in ("test", "lint", "docs", "build", "jax", "torch"):
        required += PROJECT["optional-dependencies"][name]
    lines = (ROOT / "tests" / "constraints.txt").read_text("utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if line[0] != "#")
    pinned = {normalized(name): version for name, version in pinned.items()}
    for requirement in required:
        name, lowest = re.match(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", requirement).groups()
        assert numbers(pinned[normalized(name)]) >= numbers(lowest), requirement


def normalized(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def numbers(version):
    return [int(number) for number in re.findall(r"\d+", version)]
