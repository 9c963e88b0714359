"""The shape of the package: its rooms, and the directions of imports between them."""

import ast
import pathlib

import keras_transformer

PACKAGE = pathlib.Path(keras_transformer.__file__).parent
# A room imports from its own row and from rows above it.
ROWS = (
    ("checks", "errors", "files", "layouts"),
    ("settings",),
    ("layers",),
    ("models",),
    ("losses",),
    ("data", "decoding"),
    ("inference",),
    ("evaluation",),
    ("training",),
    ("translation", "parsing"),
    ("bridges", "export"),
    ("serving",),
    ("cli",),
    ("quickstart",),
)
# Imports that still point the other way: from a module to a room. None may be added.
ARROWS_TO_REMOVE = {
    ("models.causal_language_model", "decoding"),
}
RANKS = {room: rank for rank, row in enumerate(ROWS) for room in row}
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").strip("."): (
        ast.parse(path.read_text(encoding="utf-8"))
    )
    for path in PACKAGE.rglob("*.py")
}


def imports(name, tree):
    """Yields the modules that a module imports anywhere, as in functions and for types alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("keras_transformer"):
            base = node.module.removeprefix("keras_transformer").strip(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}".strip(".")
                yield inner if inner in MODULES else base
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("keras_transformer."):
                    yield alias.name.removeprefix("keras_transformer.")


def room_of(module):
    return module.split(".")[0]


def test_the_top_level_has_rooms_and_four_files():
    files = {path.name for path in PACKAGE.glob("*.py")}
    assert files == {"__init__.py", *(f"{name}.py" for name in ROWS[0])}
    assert {room_of(name) for name in MODULES if name} == set(RANKS)


def test_imports_point_one_way():
    wrong = {
        (name, room_of(other))
        for name in filter(None, MODULES)
        for other in filter(None, imports(name, MODULES[name]))
        if RANKS[room_of(other)] > RANKS[room_of(name)]
    }
    assert wrong == ARROWS_TO_REMOVE


def test_no_modules_import_each_other_in_a_circle():
    graph = {name: {*filter(None, imports(name, tree))} - {name} for name, tree in MODULES.items()}
    done, path = set(), []

    def visit(name):
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name in done:
            return
        path.append(name)
        for other in sorted(graph[name]):
            visit(other)
        path.pop()
        done.add(name)

    for name in graph:
        visit(name)
