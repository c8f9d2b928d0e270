"""The subcommand `bayescaffe completion`: its arguments, its help and what it prints."""

import argparse
import json

from bayescaffe.cli.help_files import SHELLS

DESCRIPTION = """\
Print the completion of this command line for a shell: its commands, options and their values.

A wheel and `make install` put it below share/, where the shells look in /usr and /usr/local. In a
virtual environment, load it yourself."""

EXAMPLES = """\
examples:
  source <(bayescaffe completion bash)                                      in ~/.bashrc
  bayescaffe completion zsh > ~/.zfunc/_bayescaffe                          a folder of $fpath
  bayescaffe completion fish > ~/.config/fish/completions/bayescaffe.fish"""


def register(subparsers, common: argparse.ArgumentParser) -> None:
    """Add `completion` to the command line."""
    parser = subparsers.add_parser(
        "completion",
        parents=[common],
        help="print the completion of this command line for a shell",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=tuple(SHELLS), help="the shell")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from bayescaffe.cli import build_parser

    script = SHELLS[args.shell](build_parser())
    print(json.dumps({"shell": args.shell, "script": script}) if args.json else script, end="")
