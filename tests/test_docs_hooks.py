"""The page on hooks holds every hook's exact signature and every record's fields."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

from pararnn import hookspecs, specs
from pararnn.plugins import hooks

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "reference" / "hooks.md").read_text(encoding="utf-8")
RECORDS = sorted({record.__name__ for record in hooks().values()})


def documented_fields(record):
    """Rows `(name, type, default)` of the table below the heading of a record."""
    section = re.search(rf"^### {record}\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert section is not None, f"the page has no section on {record}"
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (.*?) \|", section[1], re.MULTILINE)
    return [(name, kind, default.strip("`")) for name, kind, default in rows]


def fields_of(record):
    """The same, of the dataclass."""
    return [
        (field.name, field.type, "required" if field.default is dataclasses.MISSING else repr(field.default))
        for field in dataclasses.fields(getattr(specs, record))
    ]


def test_every_hook_has_its_exact_signature_on_the_page():
    block = re.search(r":name: hook-signatures\n(.*?)```", PAGE, re.DOTALL)
    signatures = [f"{name}{inspect.signature(getattr(hookspecs, name))}".replace("'", "") for name in hooks()]
    assert block[1].splitlines() == signatures


@pytest.mark.parametrize("hook", hooks())
def test_every_hook_is_explained(hook):
    assert re.search(rf"^\| `{hook}` \| \w", PAGE, re.MULTILINE)


@pytest.mark.parametrize("record", RECORDS)
def test_every_field_of_a_record_is_on_the_page_with_type_and_default(record):
    assert documented_fields(record) == fields_of(record)


def test_the_page_explains_no_record_that_does_not_exist():
    assert sorted(re.findall(r"^### (\w+)$", PAGE, re.MULTILINE)) == RECORDS
