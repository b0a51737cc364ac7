"""Templates of sentences, filled with facts.

`{name}` is a fact, `{name:form}` one in a form: `ms` (of seconds), `MB` (of bytes), any of `FORMS`,
or a format of Python. `{option.name}` is how the job writes an option. `[one|other|...]` is the
first alternative all of whose facts are known, or nothing; `{name:if}` is empty and asks for a
fact.

>>> fill("it takes {took:ms}[ at {line}|, {many:if}at many lines]", {"took": 0.002}, options)
'it takes 2.00 ms'
"""

import re
import string
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from ioprof.analysis.cpu.code_lines import shortened
from ioprof.format.run_record import JobKind, Reason
from ioprof.report.texts.catalogue.options import JobOptions, options_of
from ioprof.report.texts.catalogue.sentences import STAGES
from ioprof.report.texts.units import amount, clean, count, duration, percent, ranges, rate

_MARKS: Final = re.compile(r"([\[\]|])")


def _stages(shares: Mapping[str, float]) -> str:
    names = (f" {STAGES.get(cause, cause)}" for cause in shares)
    said = [f"{share:.1%} on{name}" for share, name in zip(shares.values(), names, strict=True)]
    return ", ".join(said).replace("% on", "% of their work on", 1)


def _if(value: Any) -> str:
    if not value:
        raise KeyError(value)
    return ""


FORMS: Final[Mapping[str, Callable[[Any], str]]] = {
    "if": _if,
    "duration": duration,
    "length": lambda seconds: duration(abs(seconds)),
    "amount": amount,
    "count": count,
    "rate": rate,
    "percent": percent,
    "percent2": lambda ratio: percent(ratio, 2),
    **{f"clean{most}": partial(clean, length=most) for most in (20, 40, 60, 80, 120, 150, 200)},
    "ms": lambda seconds: f"{seconds * 1e3:,.2f} ms",
    "ms1": lambda seconds: f"{seconds * 1e3:,.1f} ms",
    "ms0": lambda seconds: f"{seconds * 1e3:,.0f} ms",
    "µs": lambda seconds: f"{seconds * 1e6:,.1f} µs",
    "kB": lambda num_bytes: f"{num_bytes / 1e3:,.0f} kB",
    "kB1": lambda num_bytes: f"{num_bytes / 1e3:,.1f} kB",
    "MB0": lambda num_bytes: f"{num_bytes / 1e6:,.0f} MB",
    "MB": lambda num_bytes: f"{num_bytes / 1e6:,.1f} MB",
    "GB": lambda num_bytes: f"{num_bytes / 1e9:,.2f} GB",
    "GB1": lambda num_bytes: f"{num_bytes / 1e9:,.1f} GB",
    "needs": lambda number: "s" if number == 1 else "",
    "s": lambda number: "" if number == 1 else "s",
    "es": lambda number: "" if number == 1 else "es",
    "path": shortened,
    "words": lambda value: value.replace("_", " "),
    "lower": lambda text: text[:1].lower() + text[1:],
    "capital": lambda text: text[:1].upper() + text[1:],
    "join": ", ".join,
    "ranges": ranges,
    "them": lambda number: "it" if number == 1 else "them",
    "reason": lambda code: Reason(code).text,
    "milliseconds": lambda seconds: f"{seconds * 1e3:,.2f}",
    "thousands": lambda number: f"{number / 1e3:,.0f}",
    "off": lambda error: f"{abs(error):.0%} too {'long' if error > 0 else 'short'}",
    "each": lambda lines: "".join(f", {line['share']:.1%} at {line['line']}" for line in lines),
    "stages": _stages,
    "modules": lambda found: ", ".join(
        f"{each['name']} {each['seconds']:,.1f} s" for each in found
    ),
}


class _Filling(string.Formatter):
    """Facts in their forms; one that is not known is a KeyError, or has a word for it."""

    def __init__(
        self,
        options: JobOptions,
        forms: Mapping[str, Mapping[str, str]],
        unknown: str | None = None,
    ) -> None:
        self._options, self._forms, self._unknown = options, forms, unknown

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
        try:
            found: tuple[Any, Any] = super().get_field(field_name, args, kwargs)
        except (KeyError, AttributeError):  # also of a record that is not there
            found = None, field_name
        if (found[0] is None or found[0] is False or found[0] == "") and self._unknown is None:
            raise KeyError(field_name)
        return found

    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None and self._unknown is not None:
            return self._unknown
        if form := FORMS.get(format_spec):
            return form(value)
        if words := self._forms.get(format_spec):
            return words[value]
        if wording := getattr(self._options, format_spec, None):
            return str(wording).format(value)
        return format(value, format_spec)


def fill(
    template: str,
    facts: Mapping[str, Any],
    options: JobOptions,
    forms: Mapping[str, Mapping[str, str]] | None = None,
) -> str:
    """The text of a template; a fact that is not known, and has no alternative, is `unknown`.
    `forms`: words for values, by the name of the form.
    """
    known, words = {"option": options, **facts}, forms or {}
    filling, lenient = _Filling(options, words), _Filling(options, words, "unknown")
    found = ""
    parts = iter(_MARKS.split(template))
    for part in parts:
        if part == "[":
            found += _group(parts, lambda each: filling.vformat(each, (), known))
        else:
            found += lenient.vformat(part, (), known)
    return found


def tell(template: str, **facts: Any) -> str:
    """The text of a template without options; facts may be records."""
    return fill(template, facts, options_of(JobKind.OTHER))


def _group(parts: Iterator[str], filled: Callable[[str], str]) -> str:
    """The text up to the end of a group: that of its first alternative all of whose facts are
    known, else nothing.
    """
    found, chosen, is_known = "", list[str](), True
    for part in parts:
        if part == "[":
            found += _group(parts, filled)
        elif part in ("|", "]"):
            chosen += [found] if is_known else []
            if part == "]":
                break
            found, is_known = "", True
        else:
            try:
                found += filled(part)
            except KeyError:
                is_known = False
    return next(iter(chosen), "")
