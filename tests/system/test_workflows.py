"""Workflows in .github/workflows pin their actions and packages, and limit their jobs."""

import pathlib
import re
import tomllib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORKFLOWS = {
    path.name: path.read_text("utf-8")
    for path in sorted((ROOT / ".github" / "workflows").iterdir())
}
BACKENDS = ("jax", "torch")
CONSTRAINTS = ROOT / "tests" / "constraints.txt"


@pytest.fixture(params=WORKFLOWS)
def workflow(request):
    return WORKFLOWS[request.param]


def jobs_of(workflow):
    """The text of each job, by name."""
    names_and_texts = re.split(r"^  (\w+):\n", workflow.split("\njobs:\n")[1], flags=re.M)[1:]
    return dict(zip(names_and_texts[::2], names_and_texts[1::2], strict=True))


def test_actions_are_commits_with_their_version(workflow):
    actions = re.findall(r"\buses:(.*)", workflow)
    assert actions
    for action in actions:
        assert re.fullmatch(r" [\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action


def test_jobs_have_a_time_limit(workflow):
    assert jobs_of(workflow)
    for name, job in jobs_of(workflow).items():
        (minutes,) = re.findall(r"^    timeout-minutes: (\d+)$", job, re.M)
        assert 0 < int(minutes) <= (350 if name == "slow" else 90), name


def test_no_step_after_a_checkout_finds_its_token(workflow):
    steps = re.split(r"^      - ", workflow, flags=re.M)[1:]
    checkouts = [step for step in steps if "actions/checkout@" in step]
    assert len(checkouts) == len(jobs_of(workflow))
    for step in checkouts:
        assert re.search(r"^          persist-credentials: false$", step, re.M), step
    assert re.search(r"^permissions:\n  contents: read\n$", workflow, re.M)


def test_only_the_weekly_run_has_the_newest_packages():
    path = CONSTRAINTS.relative_to(ROOT).as_posix()
    workflow = WORKFLOWS["ci.yml"]
    for name in WORKFLOWS.keys() - {"ci.yml"}:
        assert f"\nenv:\n  PIP_CONSTRAINT: {path}\n" in WORKFLOWS[name]
    assert "${{ github.event_name != 'schedule' && 'tests/constraints.txt' || '' }}" in workflow
    assert re.search(r'^  schedule:\n    - cron: "\d+ \d+ \* \* \d"', workflow, re.M)


def test_all_versions_of_python_and_all_backends_are_tested():
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    versions = [line.split(" :: ")[2] for line in classifiers if ":: Python ::" in line]
    assert f"python: {versions}".replace("'", '"') in WORKFLOWS["ci.yml"]
    assert "backend: [jax, torch]" in WORKFLOWS["ci.yml"]


def test_every_folder_of_tests_runs_at_night():
    """Backends and bridges are for `.ci/run`, which has what they need."""
    folders = {path.name for path in (ROOT / "tests").iterdir() if [*path.glob("test_*.py")]}
    listed = set(re.findall(r"tests/(\w+)", WORKFLOWS["nightly.yml"]))
    assert folders - listed == {"backends", "bridges"}


def test_the_constraints_pin_what_the_workflows_install():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras, required = project["optional-dependencies"], project["dependencies"]
    for name in ("test", "lint", "docs", "build", "jax", "torch"):
        assert any(f"'.[{name}]'" in text for text in WORKFLOWS.values()) or name in BACKENDS
        required += extras[name]
    lines = [line for line in CONSTRAINTS.read_text("utf-8").splitlines() if line[0] != "#"]
    pinned = {normalized(name): version for name, version in (line.split("==") for line in lines)}
    assert len(pinned) == len(lines)
    for requirement in required:
        name, lowest = re.match(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", requirement).groups()
        assert numbers(pinned[normalized(name)]) >= numbers(lowest), requirement


def normalized(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def numbers(version):
    return [int(number) for number in re.findall(r"\d+", version)]
