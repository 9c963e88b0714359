"""Every public name of the library: what is in the `__all__` of its packages, and their methods."""

import importlib
import inspect
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Each has a page in docs/api.
PACKAGES = tuple(
    sorted({p.stem for p in (ROOT / "docs/api").glob("*.md")} - {"README", "settings"})
)


def public_members():
    """Classes and functions by name, "layers.Encoder"."""
    members = {}
    for package in PACKAGES:
        module = importlib.import_module(f"keras_transformer.{package}")
        for name in module.__all__:
            if callable(getattr(module, name)):
                members[f"{package}.{name}"] = getattr(module, name)
    return members


def public_methods():
    """Documented methods and properties by name, "layers.Decoder.make_cache"."""
    return {
        f"{name}.{method_name}": method
        for name, member in public_members().items()
        if inspect.isclass(member)
        for method_name, method in _own_methods(member)
    }


def _own_methods(member):
    """Yields names and values of the methods and properties that this library documents."""
    seen = set()
    for base in inspect.getmro(member):
        if not base.__module__.startswith("keras_transformer"):
            continue
        for name, value in vars(base).items():
            is_public = not name.startswith("_") or name == "__call__"
            function = getattr(value, "__func__", getattr(value, "fget", value))
            if name in seen or not is_public or not inspect.isfunction(function):
                continue
            seen.add(name)
            if function.__doc__:
                yield name, value if isinstance(value, property) else getattr(member, name)
