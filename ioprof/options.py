"""Options that are declared once, as fields of a frozen dataclass.

    workers: Annotated[int, Option("Loader processes per rank.", least=0)] = 2

From such a class come the options of a command (`ioprof.cli.options`), the parameters of a function
of `ioprof.api` (`takes_options`), and the checks of what is given.
"""

from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from inspect import Parameter, Signature, signature
from types import UnionType
from typing import Annotated, Any, ParamSpec, TypeVar, get_args, get_origin

from ioprof.errors import CommandError

Parameters = ParamSpec("Parameters")
Options = TypeVar("Options")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Option:
    """What is known of an option beside its name, type and default."""

    help: str
    panel: str | None = None
    """Of the command's help; None: the panel of all commands."""
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    """The values that it may have; none: others than can be listed."""
    unset: str = ""
    """What holds without it, in words, where its default does not say that."""


@dataclass(frozen=True)
class Declaration:
    """A field of a class of options."""

    name: str
    kind: Any
    """The type, without its annotations."""
    default: Any
    """`Parameter.empty`: it must be given."""
    is_positional: bool
    option: Option | None
    """None: it is a parameter of the function alone."""

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def types(self) -> tuple[Any, ...]:
        """The types of its values, None left out; the first is that of a value on the command
        line.
        """
        kinds = get_args(self.kind) if isinstance(self.kind, UnionType) else (self.kind,)
        return tuple(kind for kind in kinds if kind is not type(None))


def declarations(options: type) -> Iterator[Declaration]:
    """The fields of a class of options that a caller may give: the positional ones first."""
    for field in sorted(fields(options), key=lambda field: bool(field.kw_only)):
        if field.metadata.get("internal"):
            continue
        found = [
            each for each in getattr(field.type, "__metadata__", ()) if isinstance(each, Option)
        ]
        kind = get_args(field.type)[0] if get_origin(field.type) is Annotated else field.type
        default = Parameter.empty if field.default is MISSING else field.default
        yield Declaration(field.name, kind, default, not field.kw_only, found[0] if found else None)


def check_options(options: Any) -> None:
    """CommandError for a value that is out of range or none of the choices; a default that was not
    given is always allowed.
    """
    given = getattr(options, "given", ())
    for each in declarations(type(options)):
        value, option = getattr(options, each.name), each.option
        if option is None or value is None or (value == each.default and each.name not in given):
            continue
        if option.choices and value not in option.choices:
            raise CommandError(
                f"{each.flag} {value}: unknown; choose one of {', '.join(option.choices)}"
            )
        least, most = option.least, option.most
        if (least is not None and value < least) or (most is not None and value > most):
            allowed = f"{least} or more" if most is None else f"a number from {least} to {most}"
            raise CommandError(f"{each.flag} {value}: give {allowed}")


def takes_options(
    options: Callable[Parameters, Options],
) -> Callable[[Callable[[Options], Result]], Callable[Parameters, Result]]:
    """A function of options as one that takes their fields as arguments; None stands for an option
    that is not given.
    """
    assert isinstance(options, type)
    found = list(declarations(options))
    parameters = [
        Parameter(
            each.name,
            Parameter.POSITIONAL_OR_KEYWORD if each.is_positional else Parameter.KEYWORD_ONLY,
            default=each.default,
            annotation=each.kind,
        )
        for each in found
    ]

    def decorate(function: Callable[[Options], Result]) -> Callable[Parameters, Result]:
        shown = Signature(parameters, return_annotation=signature(function).return_annotation)

        @wraps(function)
        def call(*arguments: Parameters.args, **keywords: Parameters.kwargs) -> Result:
            return function(given_options(options, shown.bind(*arguments, **keywords).arguments))

        call.__signature__ = shown  # type: ignore[attr-defined]  # `inspect.signature` looks for it
        return call

    return decorate


def given_options(options: type[Options], values: dict[str, Any]) -> Options:
    """The options with those values; a class with a field `given` gets the names of them."""
    values = {name: value for name, value in values.items() if value is not None}
    given = (
        {"given": frozenset(values)}
        if any(field.name == "given" for field in fields(options))  # type: ignore[arg-type]
        else {}
    )
    return options(**values, **given)


def values_of(options: type, holder: Any) -> dict[str, Any]:
    """What an object of that class, or of one derived from it, has in the fields of the class."""
    return {each.name: getattr(holder, each.name) for each in declarations(options)}
