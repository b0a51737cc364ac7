"""Records: structs that are read from JSON of any origin and written back without loss.

A run folder may come from another version of ioprof, from another program or from a damaged disk.
So reading never raises: a value that does not fit its field becomes the field's default, and a
`Problem` names it. Keys that this version does not know, values that did not fit, and the order of
the keys are kept in `Record.kept` and written again.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, Final, Self, TypeVar, cast

import msgspec
from msgspec import Meta, Struct, inspect

LARGEST_NUMBER: Final = 2.0**64
"""Counters in a damaged capture file reach it. Far beyond it sums and rates overflow."""
MOST_LEVELS: Final = 32
"""Nesting that is accepted: printing and saving recurse once per level."""
_SHOWN_CHARACTERS: Final = 40

ESSENTIAL: Final = Meta(extra={"essential": True})
"""Marks a field without which a run cannot be understood: `Trace.load` refuses a file whose value
there has the wrong type."""

Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""A whole number that tables can hold: process ids, ranks."""
Time = Annotated[int, Meta(ge=-(2**62), le=2**62)]
"""Nanoseconds; the sum of two is an `Integer`."""
Count = Annotated[int, Meta(ge=0)]
"""A whole number that is not negative."""
SmallCount = Annotated[int, Meta(ge=0, le=1 << 20)]
"""A number of processes or samples; code makes ranges and lists of that length."""
Number = Annotated[float, Meta(ge=0)]
"""A number that is not negative."""


class Problem(Struct, frozen=True):
    """A value in a JSON file that does not fit its field."""

    path: str
    """Where it stands, e.g. `hosts[1].cpus`."""
    value: str
    """The value as JSON, shortened."""
    expected: str
    """What the field holds, in words."""
    essential: bool = False
    """Whether the field is marked `ESSENTIAL`."""

    def __str__(self) -> str:
        return f"{self.path} is {self.value}, not {self.expected}"


class Kept(Struct, frozen=True):
    """What a record was read with beyond its fields' values."""

    keys: tuple[str, ...] | None = None
    """The keys of the JSON object, in order; None: the record was not read."""
    unknown: dict[str, Any] = msgspec.field(default_factory=dict)
    """Values of the keys that have no field."""
    unread: dict[str, tuple[Any, Any]] = msgspec.field(default_factory=dict)
    """For keys whose value did not fit: the field's value instead, and the JSON value."""
    problems: tuple[Problem, ...] = ()
    """Of a root record: all problems in its tree."""
    damaged: tuple[str, ...] = ()
    """Of a run: files of its folder that are not as they were written, by damage or by hand, and do
    without: run.json itself, and what is computed anew."""


class Record(Struct, frozen=True, kw_only=True):
    """Base of all records. Classes with `omit_defaults=True` leave out fields that were neither
    read nor set.

    Records are equal if their fields and unknown keys are, whether they were read or made.
    """

    kept: Kept = msgspec.field(default=Kept(), name="_kept")

    @classmethod
    def of(cls, value: Mapping[str, Any] | None) -> Self:
        """The record in a JSON object; what does not fit is in `problems`. ValueError where a field
        without default is missing.
        """
        problems: list[Problem] = []
        known = dict(value) if isinstance(value, Mapping) else {}
        if value is not None and not isinstance(value, Mapping):
            problems.append(Problem(cls.__name__, shown(value), "an object"))
        record = _read_record(cls, known, "", problems)
        if record is _UNFIT:
            raise ValueError(str(problems[0]))
        return msgspec.structs.replace(
            record, kept=msgspec.structs.replace(record.kept, problems=tuple(problems))
        )

    @classmethod
    def upgrade(cls, value: dict[str, Any]) -> dict[str, Any]:
        """The JSON object as this version writes it, where an older version or another program
        wrote it differently.
        """
        return value

    @classmethod
    def of_other(cls, value: object) -> dict[str, Any] | None:  # noqa: ARG003
        """The JSON object that stands for a value which is none; null: it stands for nothing."""
        return None

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What did not fit when this record was read with `of`."""
        return self.kept.problems

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record) or type(other) is not type(self):
            return NotImplemented
        names = _specs(type(self))
        same = all(getattr(self, name) == getattr(other, name) for name in names)
        return same and self.kept.unknown == other.kept.unknown

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # fields may hold dicts

    def to_dict(self) -> dict[str, Any]:
        """The record as a JSON object: the keys that it was read with, in their order, then the
        others.
        """
        found: dict[str, Any] = {}
        by_key = {spec.encode_name: spec for spec in _specs(type(self)).values()}
        omits, read_keys = (
            self.__struct_config__.omit_defaults or self.kept.keys is not None,
            self.kept.keys or (),
        )
        for key in dict.fromkeys((*read_keys, *by_key)):
            if key not in by_key:
                found[key] = self.kept.unknown[key]
                continue
            spec = by_key[key]
            value = getattr(self, spec.name)
            if key in read_keys or not omits or value != _default(spec):
                read, raw = self.kept.unread.get(key, (None, None))
                found[key] = raw if key in self.kept.unread and value == read else _plain(value)
        return found

    def replace(self, **changes: Any) -> Self:
        """A copy with other values of these fields."""
        return msgspec.structs.replace(self, **changes)


R = TypeVar("R", bound=Record)


def shown(value: Any) -> str:
    """A JSON value for a message, shortened."""
    text = json.dumps(value, default=str)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"


def parse(data: bytes | str) -> Any:
    """The JSON value in `data`. Raises ValueError or RecursionError for what is none, or holds NaN
    or a number beyond all use.
    """
    return json.loads(
        data, parse_int=_parser(int), parse_float=_parser(float), parse_constant=_parser(float)
    )


def is_too_deep(value: Any) -> bool:
    """Whether a value is nested more than `MOST_LEVELS` deep."""
    level = [value]
    for _ in range(MOST_LEVELS):
        level = [inner for entry in level for inner in _inner(entry)]
    return bool(level)


Rules = Mapping[str, Callable[[list[Any]], Any]]
"""By field: what a merge makes of the values that are known."""


def merge(records: Sequence[R], rules: Rules) -> R:
    """One record of several: each field by its rule from the records that know it, or else from the
    first one that does.
    """
    values: dict[str, Any] = {}
    for spec in _specs(type(records[0])).values():
        known = [
            value
            for record in records
            if (value := getattr(record, spec.name)) != _default(spec) and value is not None
        ]
        if known:
            values[spec.name] = rules[spec.name](known) if spec.name in rules else known[0]
    was_read = any(record.kept.keys is not None for record in records)
    keys = tuple(dict.fromkeys(key for record in records for key in record.kept.keys or ()))
    unknown: dict[str, Any] = {}
    for record in reversed(records):
        unknown |= {
            key: value
            for key, value in record.kept.unknown.items()
            if value is not None or key not in unknown
        }
    return type(records[0])(
        **values,
        kept=Kept(
            keys if was_read else None,
            unknown,
            problems=tuple(problem for record in records for problem in record.problems),
            damaged=tuple(
                dict.fromkeys(name for record in records for name in record.kept.damaged)
            ),
        ),
    )


# ------------------------------------------------------------------------------------------ reading


class _Spec(Struct, frozen=True):
    """What reading has to know of a field."""

    name: str
    encode_name: str
    type: inspect.Type
    essential: bool
    is_optional: bool
    """Whether null is one of its values."""
    default: Any
    default_factory: Any

    @property
    def has_default(self) -> bool:
        return (
            self.default is not msgspec.NODEFAULT or self.default_factory is not msgspec.NODEFAULT
        )


@cache
def _specs(cls: type[Record]) -> dict[str, _Spec]:
    """The fields of a record by attribute name, without `kept`."""
    found = {}
    for field in _described(cls).fields:
        if field.name == "kept":
            continue
        kind, essential = _without_metadata(field.type)
        is_optional = isinstance(kind, inspect.UnionType | inspect.AnyType)
        found[field.name] = _Spec(
            field.name,
            field.encode_name,
            kind,
            essential,
            is_optional,
            field.default,
            field.default_factory,
        )
    return found


_descriptions: Final[dict[type[Record], inspect.StructType]] = {}


def _described(cls: type[Record]) -> inspect.StructType:
    """What msgspec knows of a record. It describes all records within it too, each time; so all
    that are not known are asked for at once.
    """
    if cls not in _descriptions:
        classes = [
            each
            for each in {cls: None, **dict.fromkeys(_subclasses(Record))}
            if each not in _descriptions
        ]
        for each, info in zip(classes, inspect.multi_type_info(classes), strict=True):
            assert isinstance(info, inspect.StructType)
            _descriptions[each] = info
    return _descriptions[cls]


def _subclasses(cls: type[Record]) -> Iterator[type[Record]]:
    for each in cls.__subclasses__():
        yield each
        yield from _subclasses(each)


def _without_metadata(kind: inspect.Type) -> tuple[inspect.Type, bool]:
    if isinstance(kind, inspect.Metadata):
        return kind.type, bool((kind.extra or {}).get("essential"))
    return kind, False


def _default(spec: _Spec) -> Any:
    return spec.default if spec.default_factory is msgspec.NODEFAULT else spec.default_factory()


_UNFIT: Final[Any] = object()


def _read_record(cls: type[R], value: dict[str, Any], path: str, problems: list[Problem]) -> R:
    """The record in a JSON object; `_UNFIT`, and a problem more, if a field that has no default is
    missing.
    """
    keys, given = tuple(value), cls.upgrade(value)
    specs = _specs(cls)
    values: dict[str, Any] = {}
    unread: dict[str, tuple[Any, Any]] = {}
    for spec in specs.values():
        place = f"{path}.{spec.encode_name}".lstrip(".")
        raw = given.get(spec.encode_name)
        before = len(problems)
        read = _read(spec.type, raw, place, spec.essential, problems)
        if read is not _UNFIT and (
            read is not None or (spec.is_optional and spec.encode_name in given)
        ):
            values[spec.name] = read
        elif not spec.has_default:
            problems.append(
                Problem(
                    place,
                    "missing" if raw is None else shown(raw),
                    _expected(spec.type),
                    spec.essential,
                )
            )
            return cast(R, _UNFIT)
        is_partial = len(problems) > before and not isinstance(read, Record)
        lost_nulls = (
            isinstance(read, tuple) and isinstance(raw, list | tuple) and len(read) < len(raw)
        )
        is_other_form = read is not _UNFIT and _is_other_form(spec.type, raw)
        if spec.encode_name in keys and (
            read is _UNFIT or raw is None or is_partial or lost_nulls or is_other_form
        ):
            unread[spec.encode_name] = (values.get(spec.name, _default(spec)), raw)
    known = {spec.encode_name for spec in specs.values()}
    unknown = {key: given[key] for key in keys if key not in known}
    record: R = cls(**values, kept=Kept(keys, unknown, unread))
    return record


def _is_other_form(kind: inspect.Type, raw: Any) -> bool:
    """Whether a record, or one of a list of records, is written in another form than an object
    (`Record.of_other`).
    """
    kind = _without_metadata(kind)[0]
    if isinstance(kind, inspect.VarTupleType) and isinstance(raw, list | tuple):
        return any(_is_other_form(kind.item_type, entry) for entry in raw)
    return isinstance(kind, inspect.StructType) and raw is not None and not isinstance(raw, Mapping)


def _read(
    kind: inspect.Type, value: Any, path: str, essential: bool, problems: list[Problem]
) -> Any:
    """The value of a field; `_UNFIT`, and a problem more, if it does not fit."""
    kind = _without_metadata(kind)[0]
    if value is None:
        return None  # "not recorded" everywhere
    if isinstance(kind, inspect.UnionType):
        (kind,) = [
            _without_metadata(each)[0]
            for each in kind.types
            if not isinstance(each, inspect.NoneType)
        ]
    if isinstance(kind, inspect.StructType):
        cls = cast(type[Record], kind.cls)
        given = value if isinstance(value, Mapping) else cls.of_other(value)
        if given is not None:
            return _read_record(cls, dict(given), path, problems)
    elif isinstance(kind, inspect.VarTupleType):
        if isinstance(value, list | tuple):
            found = [
                _read(kind.item_type, entry, f"{path}[{place}]", essential, problems)
                for place, entry in enumerate(value)
            ]
            return tuple(entry for entry in found if entry is not _UNFIT and entry is not None)
    elif isinstance(kind, inspect.DictType):
        if isinstance(value, Mapping):
            read = {
                key: _read(kind.value_type, entry, f"{path}.{key}", essential, problems)
                for key, entry in value.items()
            }
            return {key: entry for key, entry in read.items() if entry is not _UNFIT}
    elif _fits(kind, value):
        return msgspec.convert(value, kind.cls) if isinstance(kind, inspect.EnumType) else value
    problems.append(Problem(path, shown(value), _expected(kind), essential))
    return _UNFIT


def _fits(kind: inspect.Type, value: Any) -> bool:
    """Whether a single value is of that type; `type`, since true is an int in Python."""
    match kind:
        case inspect.AnyType():
            return True
        case inspect.BoolType():
            return isinstance(value, bool)
        case inspect.StrType():
            return isinstance(value, str)
        case inspect.IntType():
            return type(value) is int and abs(value) <= LARGEST_NUMBER and _within(kind, value)
        case inspect.FloatType():
            return (
                type(value) in (int, float)
                and math.isfinite(value)
                and abs(value) <= LARGEST_NUMBER
                and _within(kind, value)
            )
        case inspect.EnumType():
            return value in {member.value for member in kind.cls}
        case _:
            raise TypeError(f"records have no fields of type {kind}")


def _within(kind: inspect.IntType | inspect.FloatType, value: float) -> bool:
    return (kind.ge is None or value >= kind.ge) and (kind.le is None or value <= kind.le)


def _expected(kind: inspect.Type) -> str:
    match kind:
        case inspect.IntType(ge=0, le=int()):
            return f"a whole number from {kind.ge:,} to {kind.le:,}"
        case inspect.IntType(ge=0):
            return "a whole number from 0"
        case inspect.IntType():
            return "a whole number"
        case inspect.FloatType(ge=None):
            return "a number"
        case inspect.FloatType():
            return f"a number from {kind.ge:g}"
        case inspect.EnumType():
            return f"one of {', '.join(str(member.value) for member in kind.cls)}"
    names = {
        inspect.StrType: "a text",
        inspect.BoolType: "true or false",
        inspect.VarTupleType: "a list",
    }
    return names.get(type(kind), "an object")


# ------------------------------------------------------------------------------------------ writing


def _plain(value: Any) -> Any:
    """A field's value as JSON has it."""
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, tuple | list):
        return [_plain(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    return value


def _inner(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _parser(kind: Callable[[str], int | float]) -> Callable[[str], int | float]:
    def parse_number(text: str) -> int | float:
        number = kind(text)
        if not abs(number) <= LARGEST_NUMBER:
            raise ValueError(f"{text[:20]} is no number that a run can hold")
        return number

    return parse_number
