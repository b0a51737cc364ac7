"""The options of a command, from the class in which they are declared (see `ioprof.options`)."""

from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import Annotated, Any

from typer import Argument, Context, Option

from ioprof.options import Declaration, declarations


def takes_options(options: type) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A function of a dict of options as a command that has the options of a class, and the
    function's further parameters.

    The dict has those that were given on the command line, also where one has its default value.
    Their values are checked by the class, whose messages name them.
    """
    declared = [each for each in declarations(options) if each.option is not None]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def command(context: Context, **values: Any) -> Any:
            found = {each.name: values.pop(each.name) for each in declared}
            sources = {name: context.get_parameter_source(name) for name in found}
            given = {
                name: value
                for name, value in found.items()
                if (source := sources[name]) and source.name != "DEFAULT"
            }
            return function(given, **values)

        _, *own = signature(function).parameters.values()
        parameters = [
            Parameter("context", Parameter.KEYWORD_ONLY, annotation=Context),
            *map(_parameter, declared),
        ]
        parameters += [each.replace(kind=Parameter.KEYWORD_ONLY) for each in own]
        command.__name__, command.__doc__, command.__module__ = (
            function.__name__,
            function.__doc__,
            function.__module__,
        )
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # where typer looks
        return command

    return decorate


def _parameter(each: Declaration) -> Parameter:
    assert each.option is not None
    option, kind = each.option, each.types[0]
    shown = option.unset or (each.default not in (None, "") and each.default is not False)
    common: dict[str, Any] = {"help": option.help, "show_default": shown}
    if each.is_positional:
        made = Argument(**common)
    else:
        flags = (
            [each.flag]
            if kind is not bool or each.default is False
            else [f"{each.flag}/--no-{each.flag[2:]}"]
        )
        made = Option(*flags, rich_help_panel=option.panel, **common)
    default = None if option.unset else each.default
    optional = kind if default is not None else kind | None
    return Parameter(
        each.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[optional, made]
    )
