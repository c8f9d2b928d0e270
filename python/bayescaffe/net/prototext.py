"""Changes to a prototxt, made in its text where its message changes.

    text = update(text, before, after)

Comments, order and layout of the rest stay as they are. This module knows where the fields of the
text format stand; protobuf's own parser decides whether the result is right.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

log = logging.getLogger(__name__)

_TOKEN = re.compile(
    r"""(?:\s+|\#[^\n]*)+                                   # not a token
    |(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<open>[{<])|(?P<close>[}>])|(?P<list>\[)|(?P<end>\])|(?P<colon>:)|(?P<separator>[,;])
    |(?P<word>[^\s\#{}<>:,;\[\]"']+)""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class Field:
    """A field in the text: a number, a string, a list or a message."""

    name: str
    start: int
    """Where its name begins."""
    end: int
    """Behind its value and the separator after it."""
    value: tuple[int, int]
    """From where to where its value stands; of a message, what is between the brackets."""
    fields: list["Field"] | None
    """What is in a message; None for other values."""


class _NotFound(Exception):
    """The text is written in a way in which a change has no place of its own."""


def parse(text: str) -> list[Field]:
    """The fields of a text that protobuf's parser accepts."""
    tokens = [token for token in _TOKEN.finditer(text) if token.lastgroup]
    try:
        fields, position = _parse_fields(tokens, 0)
    except RecursionError as error:
        raise _NotFound from error
    if position < len(tokens):
        raise _NotFound
    return fields


def update(text: str, before, after, source: object = "the text") -> str:
    """The text of the message `before`, changed to be that of `after`.

    Where the text cannot be changed in place, the message is written anew, and a line says so.
    """
    from google.protobuf import text_format

    try:
        edits = _Edits(text)
        edits.change(parse(text), (0, len(text)), before, after)
        changed = edits.apply()
        if text_format.Parse(changed, type(after)()) == after:
            return changed
    except (_NotFound, text_format.ParseError):
        pass
    log.info("%s: written anew, without its comments and its layout", source)
    return text_format.MessageToString(after)


def field_names(text: str) -> set[str]:
    """The names of the fields at the top level; none of a text that is no message."""
    try:
        return {field.name for field in parse(text)}
    except _NotFound:
        return set()


def unknown_fields(text: str, descriptor) -> Iterator[tuple[int, str, str, list[str]]]:
    """Fields that a message of that descriptor does not have: the line, the name, the name of the
    message they are in, and the fields that it has."""
    try:
        yield from _unknown(text, parse(text), descriptor, "")
    except _NotFound:
        return


def _parse_fields(tokens: Sequence[re.Match], position: int) -> tuple[list[Field], int]:
    """The fields from a token on, and the position of the token behind them."""
    fields = []
    while position < len(tokens) and tokens[position].lastgroup != "close":
        name = tokens[position]
        if name.lastgroup != "word" or position + 1 == len(tokens):
            raise _NotFound
        position += 1
        position += tokens[position].lastgroup == "colon"
        inner, first = None, position
        if position < len(tokens) and tokens[position].lastgroup == "open":
            inner, position = _parse_fields(tokens, position + 1)
            if position == len(tokens):
                raise _NotFound
            value = tokens[first].end(), tokens[position].start()
            position += 1
        else:
            position = _value_end(tokens, position)
            value = tokens[first].start(), tokens[position - 1].end()
        position += position < len(tokens) and tokens[position].lastgroup == "separator"
        span = name.start(), tokens[position - 1].end()
        fields.append(Field(name.group(), *span, value, inner))
    return fields, position


def _value_end(tokens: Sequence[re.Match], position: int) -> int:
    """The position behind a number, a word, a list, or strings that are joined."""
    kind = tokens[position].lastgroup if position < len(tokens) else None
    position += 1
    if kind == "list":
        while position < len(tokens) and tokens[position - 1].lastgroup != "end":
            position += 1
    elif kind == "string":
        while position < len(tokens) and tokens[position].lastgroup == "string":
            position += 1
    elif kind != "word":
        raise _NotFound
    return position


def _unknown(text: str, fields: list[Field], descriptor, within: str) -> Iterator[tuple]:
    for field in fields:
        known = descriptor.fields_by_name.get(field.name)
        if known is None:
            line = text.count("\n", 0, field.start) + 1
            yield line, field.name, within, list(descriptor.fields_by_name)
        elif known.message_type and field.fields is not None:
            yield from _unknown(text, field.fields, known.message_type, field.name)


class _Edits:
    """Changes to a text, collected and then made all at once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._edits: list[tuple[int, int, str]] = []

    def apply(self) -> str:
        parts, done = [], 0
        for start, end, new in sorted(self._edits, key=lambda edit: edit[:2]):
            parts += [self._text[done:start], new]
            done = end
        return "".join([*parts, self._text[done:]])

    def change(self, fields: list[Field], span: tuple[int, int], before, after) -> None:
        """Collect what makes a message that stands in the text as `fields` equal to `after`."""
        numbers = {field.name: field.number for field in after.DESCRIPTOR.fields}
        for descriptor in sorted(after.DESCRIPTOR.fields, key=lambda field: field.number):
            was, now = _values(before, descriptor.name), _values(after, descriptor.name)
            if was == now:
                continue
            places = [field for field in fields if field.name == descriptor.name]
            if len(places) != len(was):
                raise _NotFound  # a list, or a message in several parts
            for place, old, new in zip(places, was, now, strict=False):
                if old == new:
                    continue
                if place.fields is not None:
                    self.change(place.fields, place.value, old, new)
                else:
                    printed = _printed(after, descriptor.name, [new])
                    self._edits.append((*place.value, printed.partition(":")[2].strip()))
            for place in places[len(now) :]:
                self._remove(place)
            if added := now[len(was) :]:
                number = descriptor.number
                earlier = [field for field in fields if numbers.get(field.name, 0) <= number]
                anchor = max(earlier, key=lambda field: field.start, default=None)
                is_short = places and "\n" not in self._text[places[-1].start : places[-1].end]
                self._insert(after, descriptor.name, added, anchor, span, fields, bool(is_short))

    def _remove(self, field: Field) -> None:
        start, end = field.start, field.end
        line_start = self._text.rfind("\n", 0, start) + 1
        line_end = self._line_end(end)
        if not self._text[line_start:start].strip() and not self._text[end:line_end].strip():
            start, end = line_start, min(line_end + 1, len(self._text))
        else:
            while start and self._text[start - 1] in " \t":
                start -= 1
        self._edits.append((start, end, ""))

    def _insert(
        self,
        message,
        name: str,
        values: list,
        anchor: Field | None,
        span: tuple[int, int],
        fields: list[Field],
        is_short: bool,
    ) -> None:
        """Put new values of the field `name` behind the field `anchor`, or first in the message."""
        if anchor is None and not span[0]:
            self._edits.append((0, 0, _printed(message, name, values)))
            return
        place = anchor.end if anchor else span[0]
        line_end = self._line_end(place)
        rest = self._text[place:line_end].strip()
        if rest and not rest.startswith("#"):  # more stands in this line
            printed = " ".join(_printed(message, name, [value], True).strip() for value in values)
            self._edits.append((place, place, f" {printed}"))
            return
        indent = self._indent(fields, span)
        printed = "".join(_printed(message, name, [value], is_short) for value in values)
        lines = [f"\n{indent}{line}".rstrip(" ") for line in printed.splitlines()]
        self._edits.append((line_end, line_end, "".join(lines)))

    def _indent(self, fields: list[Field], span: tuple[int, int]) -> str:
        """The indentation of a message's fields."""
        for field in fields:
            start = self._text.rfind("\n", 0, field.start) + 1
            if not self._text[start : field.start].strip():
                return self._text[start : field.start]
        line = self._text[self._text.rfind("\n", 0, span[0]) + 1 : span[0]]
        return line[: len(line) - len(line.lstrip())] + "  " * bool(span[0])

    def _line_end(self, position: int) -> int:
        end = self._text.find("\n", position)
        return len(self._text) if end < 0 else end


def _values(message, name: str) -> list[Any]:
    """The values that a message has in a field: none, one, or several."""
    value = getattr(message, name)
    if message.DESCRIPTOR.fields_by_name[name].label == 3:  # repeated
        return list(value)
    return [value] if message.HasField(name) else []


def _printed(message, name: str, values: list, in_one_line: bool = False) -> str:
    """The field `name` of a message with these values, as protobuf writes it."""
    from google.protobuf import text_format

    one = type(message)()
    descriptor = message.DESCRIPTOR.fields_by_name[name]
    if descriptor.label == 3:
        getattr(one, name).extend(values)
    elif descriptor.message_type:
        getattr(one, name).CopyFrom(values[0])
    else:
        setattr(one, name, values[0])
    printed = text_format.MessageToString(one, as_one_line=in_one_line)
    # People write 1, not 1.0.
    return re.sub(r"(: -?\d+)\.0(?=\s|$)", r"\1", printed.rstrip()) + "\n"
