"""Requests and answers of TensorFlow Serving's predict API in JSON, and its errors.

Reference: https://github.com/tensorflow/serving/blob/master/tensorflow_serving/g3doc/api_rest.md
and, for the texts of errors, tensorflow_serving/util/json_tensor.cc.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from keras_transformer.serving.models import Columns

_JSON_TYPES = {bool: "Bool", dict: "Object", list: "Array", str: "String", type(None): "Null"}


class RequestError(Exception):
    """A request that gets no answer, with its HTTP status."""

    def __init__(self, message: str, status: int = 400):
        super().__init__(message)
        self.status = status


def read_request(body: bytes) -> dict[str, Any]:
    """Returns the object in the body of a request; raises a `RequestError` if there is none."""
    if not body:
        raise RequestError("JSON Parse error: The document is empty")
    try:
        # Invalid UTF-8 reaches the model as it is; our models read it as U+FFFD.
        request = json.loads(body.decode("utf-8", "surrogateescape"))
    except json.JSONDecodeError as error:
        raise RequestError(f"JSON Parse error: {error.msg} at offset: {error.pos}") from error
    except (ValueError, RecursionError) as error:
        raise RequestError(f"JSON Parse error: {error}") from error
    if not isinstance(request, dict):
        raise RequestError(f"{_shown(request)} Is not object")
    if not isinstance(request.get("signature_name", ""), str):
        rule = "not formatted correctly. 'signature_name' key must be a string value."
        raise RequestError(f"{_shown(request)} {rule}")
    return request


def to_columns(request: Mapping[str, Any], specs: Mapping[str, Any]) -> Columns:
    """Returns the inputs in a request; strings become bytes.

    `specs` has the `tf.TensorSpec` of each input. A `RequestError` is raised if one does not fit.
    """
    if "instances" not in request and "inputs" not in request:
        raise RequestError("Missing 'inputs' or 'instances' key")
    if "instances" in request:
        values = _from_rows(request, request["instances"], specs)
    elif _has_names(values := request["inputs"]):
        for name in specs.keys() - values.keys():
            raise RequestError(f"Missing named input: {name} in 'inputs' object.")
    elif len(specs) > 1:
        rule = "inputs is a plain value/list, but expecting an object as multiple input tensors"
        raise RequestError(f"{rule} required as per tensorinfo_map")
    else:
        values = dict.fromkeys(specs, values)
    return {name: _to_array(values[name], name, spec) for name, spec in specs.items()}


def to_answer(request: Mapping[str, Any], outputs: Columns) -> dict[str, Any]:
    """Returns the answer to a request as values of JSON, in rows or columns as in the request."""
    columns = {name: _to_json(name, array) for name, array in outputs.items()}
    is_single = len(columns) == 1
    if "inputs" in request:
        return {"outputs": next(iter(columns.values())) if is_single else columns}
    sizes = {name: array.shape[:1] for name, array in outputs.items()}
    if len(set(sizes.values())) != 1 or () in sizes.values():
        rule = "An answer to 'instances' needs outputs with the same number of rows"
        raise RequestError(f"{rule}. Received: {sizes}")
    rows = zip(*columns.values(), strict=True)
    named = (dict(zip(columns, row, strict=True)) for row in rows)
    return {"predictions": next(iter(columns.values())) if is_single else list(named)}


def _from_rows(request, rows, specs):
    """Returns the values of each input in a request of rows."""
    if "inputs" in request:
        rule = "Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist"
        raise RequestError(f"{_shown(request)} {rule}")
    if not isinstance(rows, list):
        raise RequestError(f"{_shown(request)} Expecting 'instances' to be an list/array")
    if not rows:
        raise RequestError(f"{_shown(request)} No values in 'instances' array")
    if not isinstance(rows[0], dict) and len(specs) > 1:
        rule = "instances is a plain list, but expecting list of objects as multiple input tensors"
        raise RequestError(f"{rule} required as per tensorinfo_map")
    have_names = _has_names(rows[0])
    for number, row in enumerate(rows):
        if _has_names(row) != have_names:
            kinds = "object but got list" if have_names else "value/list but got object"
            raise RequestError(f"Expecting {kinds} at item {number} of input list")
        if have_names and row.keys() != specs.keys():
            rule = f"{_shown(row)} keys must be equal to: {','.join(sorted(specs))}"
            rule = rule.replace("JSON Value", "JSON object", 1)
            raise RequestError(f"Failed to process element: {number} of 'instances' list. {rule}")
    return {name: [row[name] for row in rows] if have_names else rows for name in specs}


def _to_array(value, name, spec):
    shape, first = [], value
    while isinstance(first, list):
        shape.append(len(first))
        first = first[0] if first else None
    leaves = list(_leaves(value, 0, shape, spec.dtype))
    if not spec.shape.is_compatible_with(shape):
        raise RequestError(f"Expecting shape {spec.shape} of {name} but got: {shape}")
    # NumPy's own strings would lose zeros at their end.
    array = np.empty(len(leaves), object if spec.dtype.name == "string" else spec.dtype.name)
    try:
        array[:] = leaves
    except OverflowError as error:
        raise RequestError(f"{name} is not of expected type: {spec.dtype.name}") from error
    return array.reshape(shape)


def _leaves(value, level, shape, dtype) -> Iterator[Any]:
    """Yields the numbers or strings in nested lists, which must have a shape."""
    if not isinstance(value, list):
        if level != len(shape):
            where = f"level: {level + 1} in the JSON DOM. Expected at level: {len(shape)}"
            raise RequestError(f"{_shown(value)} found at incorrect {where}")
        yield _leaf(value, dtype)
        return
    if level >= len(shape):
        rule = f"Encountered list at unexpected level: {level} expected < {len(shape)}"
        raise RequestError(rule)
    if len(value) != shape[level]:
        where = f"size: {len(value)} at level: {level} expected size: {shape[level]}"
        raise RequestError(f"Encountered list at unexpected {where}")
    for item in value:
        yield from _leaves(item, level + 1, shape, dtype)


def _leaf(value, dtype):
    is_text, numbers = dtype.name == "string", int if dtype.is_integer else int | float
    if is_text and isinstance(value, dict):
        if _has_names(value):
            raise RequestError(f"{_shown(value)} not formatted correctly for base64 data")
        try:
            return base64.b64decode(value["b64"], validate=True)
        except ValueError as error:
            raise RequestError("Unable to base64 decode") from error
    allowed: Any = str if is_text else bool if dtype.is_bool else numbers
    if not isinstance(value, allowed) or isinstance(value, bool) != dtype.is_bool:
        kind = _JSON_TYPES.get(type(value), "Number")
        raise RequestError(f"{_shown(value)} Type: {kind} is not of expected type: {dtype.name}")
    try:
        return value.encode("utf-8", "surrogateescape") if is_text else value
    except UnicodeEncodeError as error:
        rule = "The surrogate pair in string is invalid."
        raise RequestError(f"JSON Parse error: {rule}") from error


def _to_json(name, array):
    if array.dtype == object:  # strings
        values = [value.decode("utf-8", "replace") for value in array.ravel()]
        if name.endswith("_bytes"):
            values = [{"b64": base64.b64encode(value).decode()} for value in array.ravel()]
        array = np.array([*values, None])[:-1].reshape(array.shape)
    elif array.dtype.kind == "f":
        # The shortest digits of each number, also of a float32.
        array = array.astype(str).astype(float)
    return array.tolist()


def _has_names(value):
    """Returns whether a value is an object of named inputs, and not a string in base64."""
    is_base64 = isinstance(value, dict) and [*value] == ["b64"] and isinstance(value["b64"], str)
    return isinstance(value, dict) and not is_base64


def _shown(value):
    text = json.dumps(value)
    return f"JSON Value: {text if len(text) <= 256 else text[:256] + '...'}"
