"""Frozen dataclasses to canonical JSON and back, with the place of the first mistake.

A document is ``{"data": ..., "format": "remat/<kind>", "version": N}``, keys sorted, no spaces: equal values
give equal bytes, so a document can be compared, hashed and used as a key.  Understood are dataclasses and
their fields of type int, float, bool, str, Path, enum, tuple, frozenset, `NewType` and ``X | None``.
Reading is strict: a field that is missing, unknown or of another type is a `FormatError`, and so is one that the
dataclass itself refuses with a `FormatError` at ``.field``.  A field whose metadata is `OPTIONAL` is left out if it has
its default, so that adding such a field does not change documents that do not use it.
"""

from __future__ import annotations

import functools
import json
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from remat_compiler.errors import FormatError, suggestion

T = TypeVar("T")
Decoder = Callable[[object, str], Any]

OPTIONAL: Mapping[str, bool] = types.MappingProxyType({"optional": True})
"""Metadata of a dataclass field that documents leave out if it has its default."""
_SCALARS = frozenset({int, float, bool, str})
_UNIONS = (types.UnionType, Union)  # NewTypes joined by | give the second


def to_document(kind: str, version: int, value: object) -> str:
    """The document of `value`, a frozen dataclass."""
    document = {"format": f"remat/{kind}", "version": version, "data": encode(value)}
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)


def from_document(kind: str, version: int, cls: type[T], text: str | bytes, most_bits: int | None = None) -> T:
    """The `cls` that `text` describes.

    Args:
        kind: Kind of the document, as its ``format`` names it.
        version: Its version.
        cls: The dataclass that it describes.
        text: The document.
        most_bits: Bits of the largest whole number allowed in it, without its sign; `None` for no limit.

    Raises:
        FormatError: `text` is no JSON, of another format or version, or does not describe a `cls`.
    """
    try:
        document = json.loads(text, parse_int=None if most_bits is None else functools.partial(_bounded, most_bits))
    # Not only broken text: too deep a nesting, too large a number.
    except (ValueError, RecursionError) as error:
        raise FormatError("$", f"not JSON: {error}") from error
    if not isinstance(document, dict) or document.keys() != {"format", "version", "data"}:
        raise FormatError("$", 'expected an object with exactly the keys "data", "format" and "version"')
    # The kind before the version: versions of different kinds cannot be compared.
    if document["format"] != f"remat/{kind}":
        raise FormatError("$.format", f"expected 'remat/{kind}', got {_shown(document['format'])}")
    # True and 1.0 equal 1 to Python.
    if type(document["version"]) is not int or document["version"] != version:
        raise FormatError("$.version", f"expected {version}, got {_shown(document['version'])}; write the file again")
    try:
        return decode(cls, document["data"], "$.data")
    except RecursionError as error:
        raise FormatError("$.data", "nested too deep") from error


def _bounded(most_bits: int, digits: str) -> int:
    number = int(digits)
    if number.bit_length() > most_bits:
        raise ValueError(f"a whole number of more than {most_bits} bits")
    return number


def encode(value: object) -> object:
    """`value` in the types that `json` writes; sets are sorted, so that equal values encode alike."""
    # Plain numbers and strings come first: they are nearly all there is in a large graph.
    if value is None or type(value) in _SCALARS:
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    if isinstance(value, frozenset):
        # By text, since the encoded items of one set may be of types that do not compare.
        return sorted((encode(item) for item in value), key=repr)
    if is_dataclass(value) and not isinstance(value, type):
        names, optional = _field_names(type(value))
        found = {name: encode(getattr(value, name)) for name in names}
        found.update((name, encode(kept)) for name, default in optional if (kept := getattr(value, name)) != default)
        return found
    raise TypeError(f"expected a dataclass, enum, tuple, frozenset, number, str or None, got {value!r}")


@functools.cache
def _field_names(cls: Any) -> tuple[tuple[str, ...], tuple[tuple[str, object], ...]]:
    """Names of the fields that are always written, and names and defaults of the others."""
    always = tuple(f.name for f in fields(cls) if not f.metadata.get("optional"))
    return always, tuple((f.name, f.default) for f in fields(cls) if f.metadata.get("optional"))


def decode(cls: type[T], data: object, place: str = "$") -> T:
    """The `cls` that `data` encodes; `place` is the path of `data` in its document."""
    return cast("T", _decoder(cast("Any", cls))(data, place))


@functools.cache
def _decoder(annotation: Any) -> Decoder:
    """The function that decodes one type."""
    # A NewType; it has no values of its own.
    if hasattr(annotation, "__supertype__"):
        return _decoder(annotation.__supertype__)
    if is_dataclass(annotation):
        return _dataclass_decoder(cast("type[object]", annotation))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return functools.partial(_decode_enum, annotation)
    if annotation in (int, float, bool, str):
        return functools.partial(_decode_scalar, annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in _UNIONS and len(arguments) == 2 and arguments[1] is types.NoneType:
        some = _decoder(arguments[0])
        return lambda data, place: None if data is None else some(data, place)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return functools.partial(_decode_items, tuple, _decoder(arguments[0]))
    if origin is tuple:
        return functools.partial(_decode_record, tuple(_decoder(argument) for argument in arguments))
    if origin is frozenset:
        return functools.partial(_decode_items, frozenset, _decoder(arguments[0]))
    raise TypeError(f"no JSON form for {annotation!r}; see the module docstring for what there is")


def _dataclass_decoder(cls: type[object]) -> Decoder:
    """The decoder of a dataclass: every field that is not optional must be there, and no other key."""
    # `fields` has annotations as text under `from __future__ import annotations`.
    hints = get_type_hints(cls)
    needed = frozenset(_field_names(cast("Any", cls))[0])
    decoders = {f.name: _decoder(hints[f.name]) for f in fields(cls)}  # type: ignore[arg-type]

    def decode_fields(data: object, place: str) -> object:
        if not isinstance(data, dict):
            raise FormatError(place, f"expected an object ({cls.__name__}), got {_shown(data)}")
        # Equal keys are the common case; only otherwise is it worth finding the first wrong one.
        if data.keys() != decoders.keys():
            for name in data:
                if name not in decoders:
                    raise FormatError(place, f"unknown field {_shown(name)}{suggestion(name, tuple(decoders))}")
            for name in decoders:
                if name not in data and name in needed:
                    raise FormatError(place, f"field {name!r} is missing")
        # Optional fields that are left out take the default of the dataclass.
        values = {name: one(data[name], f"{place}.{name}") for name, one in decoders.items() if name in data}
        try:
            return cls(**values)
        except FormatError as error:
            # `__post_init__` names the field; the place in the document goes before it.
            raise FormatError(place + error.place, error.problem) from error

    return decode_fields


def _decode_enum(cls: type[Enum], data: object, place: str) -> Enum:
    values = {member.value: member for member in cls}
    if not isinstance(data, str) or data not in values:
        near = suggestion(data, tuple(values)) if isinstance(data, str) else f" (allowed: {', '.join(values)})"
        raise FormatError(place, f"unknown {cls.__name__} {_shown(data)}{near}")
    return values[data]


def _decode_scalar(cls: type[object], data: object, place: str) -> object:
    # bool is an int to Python, and an int a float to JSON; only the second is meant.
    if cls is float and type(data) is int:
        return float(data)
    # `json` reads NaN and Infinity, which no canonical document can hold.
    if type(data) is not cls or (isinstance(data, float) and not math.isfinite(data)):
        raise FormatError(place, f"expected {cls.__name__}, got {_shown(data)}")
    return data


def _decode_items(make: Callable[[list[object]], object], item: Decoder, data: object, place: str) -> object:
    if not isinstance(data, list):
        raise FormatError(place, f"expected a list, got {_shown(data)}")
    return make([item(one, f"{place}[{i}]") for i, one in enumerate(data)])


def _decode_record(items: tuple[Decoder, ...], data: object, place: str) -> tuple[object, ...]:
    if not isinstance(data, list) or len(data) != len(items):
        raise FormatError(place, f"expected a list of {len(items)}, got {_shown(data)}")
    return tuple(item(one, f"{place}[{i}]") for i, (item, one) in enumerate(zip(items, data)))


def _shown(data: object) -> str:
    """`data` cut to what fits a message."""
    text = repr(data)
    return text if len(text) <= 60 else f"{text[:57]}..."
