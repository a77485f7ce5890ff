"""`python -m pararnn_cola.study`: the command `pararnn cola-study` by itself."""

from __future__ import annotations

import sys

import click

from pararnn.errors import ParaRNNError
from pararnn_cola.study.command import cola_study

if __name__ == "__main__":
    try:
        cola_study()
    except ParaRNNError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2)
