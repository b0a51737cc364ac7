"""The options of a command, from the class in which they are declared (see `ioprof.options`)."""

from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import Annotated, Any

from typer import Argument, Context, Option

from ioprof.options import Declaration, declarations


def takes_options(options: type, without: frozenset[str] = frozenset()) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A function of a dict of options as a command that has the options of a class, and the function's further parameters.

    The dict has those that were given on the command line, also where one has its default value.
    """
    declared = [each for each in declarations(options) if each.option is not None and each.name not in without]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def command(context: Context, **values: Any) -> Any:
            given = {
                each.name: value
                for each in declared
                if (value := values.pop(each.name)) is not None and not _is_default(context, each.name)
            }
            return function(given, **values)

        _, *own = signature(function).parameters.values()
        parameters = [Parameter("context", Parameter.KEYWORD_ONLY, annotation=Context), *map(_parameter, declared)]
        parameters += [each.replace(kind=Parameter.KEYWORD_ONLY) for each in own]
        command.__name__, command.__doc__, command.__module__ = function.__name__, function.__doc__, function.__module__
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # where typer looks
        return command

    return decorate


def _is_default(context: Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is None or source.name in ("DEFAULT", "DEFAULT_MAP")


def _parameter(each: Declaration) -> Parameter:
    assert each.option is not None
    option, kind = each.option, each.types[0]
    shown = option.unset or each.default not in (None, "", False)
    common: dict[str, Any] = {
        "help": option.help, "min": option.least, "max": option.most, "metavar": option.metavar, "show_default": shown
    }  # fmt: skip
    if each.is_positional:
        made = Argument(**common)
    else:
        flags = [each.flag] if kind is not bool or each.default is False else [f"{each.flag}/--no-{each.flag[2:]}"]
        made = Option(*flags, rich_help_panel=option.panel, **common)
    default = None if option.unset else each.default  # where words say what holds, the value may be out of range
    optional = kind if default is not None else kind | None
    return Parameter(each.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[optional, made])
