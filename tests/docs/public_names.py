"""Every public name of the library: what is in the `__all__` of its packages, and their methods."""

import importlib.util
import inspect
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]


def load_make_api():
    specification = importlib.util.spec_from_file_location("make_api", ROOT / "docs/make_api.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


make_api = load_make_api()


def public_members():
    """Classes and functions by name, "layers.Encoder"."""
    members = {}
    for package in make_api.PACKAGES:
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
        for method_name, method in make_api.own_methods(member)
    }
