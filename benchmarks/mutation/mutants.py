"""A seeded sample of the mutants that cosmic-ray can make of some modules."""

import dataclasses
import difflib
import pathlib
import random
import re
import tempfile
import warnings

from cosmic_ray.commands.init import init
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import WorkDB, use_db

# Mutants that say nothing about the tests, by rule; what remains is drawn from blindly. A rule is
# of the operator's name and of the code that follows the changed place.
LEFT_OUT = {
    # A floating tensor knows no bits, so that any call whatever would kill these: without them the
    # score is the lower.
    "bits": (r"ReplaceBinaryOperator_.*(Shift|Bit)|ReplaceUnaryOperator_USub_Invert", ""),
    # Of small integers, names of backends and types, equal ones are one object in CPython.
    "identity": (r"ReplaceComparisonOperator_(Eq_Is|NotEq_IsNot|Is_Eq|IsNot_NotEq)$", ""),
    # No value of a few allowed names comes before another; which ones do is chance.
    "order of names": (r"ReplaceComparisonOperator_(Eq|NotEq)_[LG]tE?$", r"\s*[\"']"),
    # `1` is `+1`, which another operator makes of `-1` as well.
    "twice the same": (r"ReplaceUnaryOperator_Delete_USub$", ""),
}


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One change of one module; two mutants are the same where their diffs are."""

    module: str  # path from the root of the repository
    operator: str
    line: int
    source: str = dataclasses.field(repr=False)  # the whole mutated module
    diff: str = dataclasses.field(repr=False)


def draw(root, modules, size, seed):
    """Draw mutants from all modules together, those that compile.

    Args:
        root: The repository.
        modules: Paths from there.
        size: How many; fewer where there are not as many.
        seed: The same seed draws the same mutants of the same sources.

    Returns:
        A list of `Mutant`, and the number of mutants that could be drawn.
    """
    specifications = [x for x in _specifications(root, modules) if not _is_left_out(x)]
    random.Random(seed).shuffle(specifications)
    mutants = []
    for specification in specifications:
        if len(mutants) == size:
            break
        mutant = _mutate(root, specification)
        # Replacing the stars of `**settings`, for one, makes no Python.
        if _compiles(mutant.source):
            mutants.append(mutant)
    return mutants, len(specifications)


def _specifications(root, modules):
    with tempfile.TemporaryDirectory() as folder:
        with use_db(pathlib.Path(folder) / "session.sqlite", WorkDB.Mode.create) as session:
            init([pathlib.Path(root) / module for module in modules], session, {})
            found = [item.mutations[0] for item in session.work_items]
    return sorted(found, key=lambda one: (str(one.module_path), one.operator_name, one.occurrence))


def _is_left_out(specification):
    lines = specification.module_path.read_text(encoding="utf-8").splitlines()
    line, column = specification.end_pos
    return any(
        re.search(operator, specification.operator_name)
        and re.match(following, lines[line - 1][column:])
        for operator, following in LEFT_OUT.values()
    )


def _mutate(root, specification):
    module = specification.module_path.relative_to(root).as_posix()
    original = specification.module_path.read_text(encoding="utf-8")
    operator = get_operator(specification.operator_name)()
    source = mutate_code(original, operator, specification.occurrence)
    lines = difflib.unified_diff(
        original.splitlines(), source.splitlines(), module, module, lineterm="", n=1
    )
    name = specification.operator_name.removeprefix("core/")
    return Mutant(module, name, specification.start_pos[0], source, "\n".join(lines))


def _compiles(source):
    try:
        with warnings.catch_warnings(action="ignore"):  # Of comparing a literal by identity.
            compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True
