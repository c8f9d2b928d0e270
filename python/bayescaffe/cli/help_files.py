"""Shell completion and the man page, made from the parsers.

    python -m bayescaffe.cli.help_files FOLDER    writes them below FOLDER, as below /usr/share

The build of a wheel and `make install` do that; `bayescaffe completion SHELL` prints one.
"""

import argparse
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bayescaffe import __version__


@dataclass(frozen=True)
class Command:
    """A command, or the group that commands belong to."""

    words: tuple[str, ...]
    """What is typed: ("bayescaffe", "data", "mnist")."""
    parser: argparse.ArgumentParser
    help: str
    subcommands: dict[str, str]
    """The help of each, by name."""

    @property
    def options(self) -> list[argparse.Action]:
        return [
            action
            for action in self.parser._actions
            if action.option_strings and action.help != argparse.SUPPRESS
        ]

    @property
    def positionals(self) -> list[argparse.Action]:
        return [
            action
            for action in self.parser._actions
            if not action.option_strings and not isinstance(action, argparse._SubParsersAction)
        ]


def commands(
    parser: argparse.ArgumentParser, words: tuple[str, ...] = ("bayescaffe",), help: str = ""
) -> Iterator[Command]:
    """The parser as a command, and all commands below it."""
    groups = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    helps = {choice.dest: choice.help for group in groups for choice in group._choices_actions}
    yield Command(words, parser, help, helps)
    for group in groups:
        for name, below in group.choices.items():
            yield from commands(below, (*words, name), helps[name])


def option_help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """The help of an option in one line."""
    return " ".join(parser._get_formatter()._expand_help(action).split()) if action.help else ""


# ---- Completion ----------------------------------------------------------------------------------

# Bash tells where the cursor is. The words that are commands lead to a case, which offers words;
# where it offers none, files are offered.
_BASH = """\
# bash completion of bayescaffe {version}
_bayescaffe() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} path=bayescaffe i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$path ${{COMP_WORDS[i]}}" in
      {paths}) path="$path ${{COMP_WORDS[i]}}" ;;
    esac
  done
  case "$path $previous" in
{values}
  esac
  case "$path" in
{words}
  esac
}}
complete -o default -F _bayescaffe bayescaffe
"""


def bash(parser: argparse.ArgumentParser) -> str:
    """Completion for bash."""
    found = list(commands(parser))
    values, words = [], []
    for command in found:
        path = " ".join(command.words)
        for action in command.options:
            if action.nargs == 0:
                continue
            offered = " ".join(map(str, action.choices or ()))
            for option in action.option_strings:
                reply = f'COMPREPLY=($(compgen -W "{offered}" -- "$word"))' if offered else ""
                values.append(f'    "{path} {option}") {reply + "; " if reply else ""}return ;;')
        options = " ".join(name for action in command.options for name in action.option_strings)
        fixed = " ".join(
            [*command.subcommands, *(str(c) for p in command.positionals for c in p.choices or ())]
        )
        words.append(
            f'    "{path}") if [[ $word == -* ]]; then '
            f'COMPREPLY=($(compgen -W "{options}" -- "$word")); '
            f'else COMPREPLY=($(compgen -W "{fixed}" -- "$word")); fi ;;'
        )
    paths = "|".join(f'"{" ".join(command.words)}"' for command in found[1:])
    return _BASH.format(
        version=__version__, paths=paths, values="\n".join(values), words="\n".join(words)
    )


def zsh(parser: argparse.ArgumentParser) -> str:
    """Completion for zsh: a function for each command, which calls that of the next word."""
    lines = ["#compdef bayescaffe", f"# zsh completion of bayescaffe {__version__}"]
    for command in commands(parser):
        lines.append(f"{_function(command.words)}() {{")
        arguments = []
        for action in command.options:
            names = action.option_strings
            text = _zsh_text(option_help(command.parser, action))
            value = "" if action.nargs == 0 else f":{_zsh_value(action)}"
            for name in names:
                arguments.append(_zsh_quote(f"{name}[{text}]{value}"))
        if command.subcommands:
            arguments += ["'1: :->command'", "'*:: :->rest'"]
        for action in command.positionals:
            many = "*" if action.nargs in ("*", "+") else ""
            arguments.append(_zsh_quote(f"{many}:{_zsh_value(action)}"))
        lines.append("  local state line")
        lines.append("  _arguments -C \\\n    " + " \\\n    ".join(arguments))
        if command.subcommands:
            offers = " ".join(
                _zsh_quote(f"{name}:{_zsh_text(text)}")
                for name, text in command.subcommands.items()
            )
            lines += [
                "  case $state in",
                f"    command) local -a offers=({offers}); _describe command offers ;;",
                "    rest) case $line[1] in",
                *(
                    f"      {name}) {_function((*command.words, name))} ;;"
                    for name in command.subcommands
                ),
                "    esac ;;",
                "  esac",
            ]
        lines.append("}")
    return "\n".join([*lines, '_bayescaffe "$@"', ""])


def _function(words: tuple[str, ...]) -> str:
    return "_" + "_".join(words)


def _zsh_text(text: str) -> str:
    return re.sub(r"([\[\]:\\])", r"\\\1", text)


def _zsh_quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _zsh_value(action: argparse.Action) -> str:
    name = _zsh_text(str(action.metavar or action.dest))
    if action.choices:
        return f"{name}:({' '.join(map(str, action.choices))})"
    return f"{name}:_files"


def fish(parser: argparse.ArgumentParser) -> str:
    """Completion for fish: one line for each command and option, with the words it follows."""
    lines = [f"# fish completion of bayescaffe {__version__}"]
    for command in commands(parser):
        condition = "; and ".join(
            [
                *(f"__fish_seen_subcommand_from {word}" for word in command.words[1:]),
                *(
                    [f"not __fish_seen_subcommand_from {' '.join(command.subcommands)}"]
                    if command.subcommands
                    else []
                ),
            ]
        )
        start = f"complete -c bayescaffe -n {shlex.quote(condition)}" if condition else "complete"
        for name, text in command.subcommands.items():
            lines.append(f"{start} -f -a {name} -d {_fish_quote(text)}")
        for action in command.options:
            names = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                for name in action.option_strings
            )
            value = ""
            if action.nargs != 0:
                value = (
                    f" -x -a '{' '.join(map(str, action.choices))}'" if action.choices else " -r"
                )
            text = _fish_quote(option_help(command.parser, action))
            lines.append(f"{start} {names}{value} -d {text}")
        for action in command.positionals:
            if action.choices:
                lines.append(f"{start} -f -a '{' '.join(map(str, action.choices))}'")
    return "\n".join([*lines, ""])


def _fish_quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SHELLS = {"bash": bash, "zsh": zsh, "fish": fish}


# ---- The man page --------------------------------------------------------------------------------


def man_page(parser: argparse.ArgumentParser) -> str:
    """The page bayescaffe(1): a section for each command."""
    lines = [
        f'.TH BAYESCAFFE 1 "" "bayescaffe {__version__}" "Bayesian Caffe"',
        ".SH NAME",
        "bayescaffe \\- data sets, training, draws from the posterior, analysis and reports",
    ]
    for command in commands(parser):
        name = " ".join(command.words)
        lines += [".SH SYNOPSIS" if len(command.words) == 1 else f".SH {_roff(name.upper())}"]
        usage = " ".join(command.parser.format_usage().removeprefix("usage: ").split())
        lines += [_roff(usage), *_verbatim(command.parser.description)]
        for action in (*command.positionals, *command.options):
            lines += [".TP", _roff(_heading(action)), _roff(option_help(command.parser, action))]
        for word, text in command.subcommands.items():
            lines += [".TP", f"\\fB{_roff(word)}\\fR", _roff(text)]
        lines += _verbatim(command.parser.epilog)
    lines += [".SH EXIT STATUS"]
    codes = {0: "done", 1: "failed", 2: "wrong usage", 130: "interrupted", 141: "broken pipe"}
    for code, text in codes.items():
        lines += [".TP", f"\\fB{code}\\fR", text]
    return "\n".join([*lines, ""])


def _heading(action: argparse.Action) -> str:
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else None)
    if not action.option_strings:
        return str(value or action.dest)
    names = ", ".join(action.option_strings)
    return names if action.nargs == 0 else f"{names} {value or action.dest.upper()}"


def _roff(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text.startswith((".", "'")) else text


def _verbatim(text: str | None) -> list[str]:
    if not text:
        return []
    return [
        ".PP",
        ".nf",
        *map(
            _roff,
            textwrap.dedent(
                text % {"prog": "bayescaffe"} if "%(prog)" in text else text
            ).splitlines(),
        ),
        ".fi",
    ]


# ---- Files ---------------------------------------------------------------------------------------


def write_help_files(folder: Path) -> None:
    """Write all of them where shells and man look for them below a folder like /usr/share."""
    from bayescaffe.cli import build_parser

    parser = build_parser()
    files = {
        "man/man1/bayescaffe.1": man_page(parser),
        "bash-completion/completions/bayescaffe": bash(parser),
        "zsh/site-functions/_bayescaffe": zsh(parser),
        "fish/vendor_completions.d/bayescaffe.fish": fish(parser),
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_help_files(Path(sys.argv[1]))
