"""The command line `pararnn`: commands of the core and of plugins, each imported when it is called.

Help lists summaries from records, so it imports neither torch nor the commands. Errors of pararnn end as one sentence on stderr with exit
status 2.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any, NoReturn, TextIO

import click

from pararnn.distributions import core_version
from pararnn.errors import ParaRNNError, PluginError, PluginWarning
from pararnn.provenance import Entry, Provenance
from pararnn.registry import installed
from pararnn.specs import CommandSpec

COMMANDS = {
    spec.name: spec
    for spec in (
        CommandSpec(name="plugins", target="pararnn.cli.plugins:plugins", summary="List installed plugins, their state and what they offer."),
        CommandSpec(name="doctor", target="pararnn.cli.doctor:doctor", summary="Try every backend on this machine, each in a child process."),
        CommandSpec(name="verify", target="pararnn.cli.verify:verify", summary="Run the conformance checks on a cell, a structure or a backend."),
        CommandSpec(name="compile", target="pararnn.cli.compile:compile_", summary="Say whether the step of a cell can be made into a kernel."),
        CommandSpec(name="bench", target="pararnn.cli.bench:bench", summary="Time a cell solved in parallel against the walk."),
    )
}


class LazyGroup(click.Group):
    """A group that knows its commands by record and imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The core's commands, then those of plugins; one that the core's name would hide is listed as `distribution:name`."""
        return [*COMMANDS, *self._of_plugins()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command called `cmd_name`, imported; `None` when there is no such command."""
        if cmd_name in COMMANDS:
            entry = Entry(COMMANDS[cmd_name], Provenance(distribution="pararnn-core", version=core_version(), plugin="core"))
        elif cmd_name in installed().commands:
            entry = installed().commands[cmd_name]
        else:
            return None
        command = entry.load()
        if not isinstance(command, click.Command):
            raise PluginError(
                f"command {cmd_name!r} of {entry.provenance} is a {type(command).__name__}, not a click command; report it to its authors"
            )
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from their records."""
        of_plugins = [(label, f"{entry.summary} ({entry.provenance.distribution})") for label, entry in self._of_plugins().items()]
        with formatter.section("Commands"):
            formatter.write_dl([*((name, spec.summary) for name, spec in COMMANDS.items()), *of_plugins])

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run the command line; an error of pararnn becomes one sentence and exit status 2."""
        with warnings.catch_warnings():
            _show_plugin_warnings_as_sentences()
            try:
                return super().main(*arguments, **options)
            except ParaRNNError as error:
                if not options.get("standalone_mode", True):
                    raise
                _exit_with(error)

    @staticmethod
    def _of_plugins() -> dict[str, Entry[CommandSpec]]:
        entries = installed().commands.items()
        return {(entry.qualified_name if label in COMMANDS else label): entry for label, entry in entries}


def _exit_with(error: ParaRNNError) -> NoReturn:
    click.echo(f"Error: {error}", err=True)
    sys.exit(2)


def _show_plugin_warnings_as_sentences() -> None:
    """Print a plugin's fault without the source line that Python puts below a warning."""
    show = warnings.showwarning
    warnings.filterwarnings("default", category=PluginWarning)

    def as_sentence(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None, line: str | None = None
    ) -> None:
        if issubclass(category, PluginWarning):
            click.echo(f"Warning: {message}", err=True)
        else:
            show(message, category, filename, lineno, file, line)

    warnings.showwarning = as_sentence


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(core_version(), prog_name="pararnn")
def main() -> None:
    """Recurrent networks solved in parallel over time."""
