import importlib.metadata
import sys
import types
import warnings

import pytest

from pararnn import distributions, hookspecs
from pararnn.distributions import UNKNOWN_VERSION, Candidate, discover, exclusion, import_name_rivals
from pararnn.errors import PluginError, PluginWarning
from pararnn.plugins import PluginState, hooks, load_plugins
from pararnn.specs import CellSpec, CommandSpec


def load_one(candidate, environ=None, core="0.1.0", **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PluginWarning)
        (record,) = load_plugins([candidate], environ=environ or {}, core=core, **options)
    return record


def test_every_hook_has_a_record_type():
    assert set(hooks()) == {name for name in dir(hookspecs) if name.startswith("pararnn_")}
    assert hooks()["pararnn_register_cells"] is CellSpec
    assert hooks()["pararnn_register_commands"] is CommandSpec


def test_a_loaded_plugin_offers_its_records_with_their_provenance(candidate, cell):
    record = load_one(candidate("toy", distribution="toy-cells", version="2.1", pararnn_register_cells=[cell("A"), cell("B")]))
    assert record.state is PluginState.LOADED
    assert [entry.qualified_name for entry in record.entries] == ["toy-cells:A", "toy-cells:B"]
    assert str(record.entries[0].provenance) == "toy-cells 2.1"


def test_a_generator_is_an_iterable_of_records(candidate, cell):
    def pararnn_register_cells():
        yield cell("A")

    assert [entry.name for entry in load_one(candidate(pararnn_register_cells=pararnn_register_cells)).entries] == ["A"]


def failing_import(error):
    def load():
        raise error

    return Candidate(name="bad", distribution="bad-cells", version="1", load=load)


@pytest.mark.parametrize(
    "error", [ImportError("no triton"), SyntaxError("bad"), SystemExit(3), ZeroDivisionError("x")], ids=lambda e: type(e).__name__
)
def test_a_plugin_that_cannot_be_imported_leaves_the_others_alone(candidate, cell, error):
    with pytest.warns(PluginWarning, match="bad-cells 1 is broken") as caught:
        broken, fine = load_plugins([failing_import(error), candidate(pararnn_register_cells=[cell()])], environ={}, core="0.1.0")
    assert (broken.state, fine.state) == (PluginState.BROKEN, PluginState.LOADED)
    assert broken.cause is error
    assert type(error).__name__ in broken.detail
    assert len(caught) == 1


def test_a_broken_plugin_is_logged_with_its_cause(caplog):
    load_one(failing_import(ImportError("no triton")))
    (line,) = caplog.records
    assert line.name == "pararnn.plugins"
    assert "no triton" in line.message
    assert line.exc_info[0] is ImportError


def test_strict_mode_raises_with_the_cause():
    error = ImportError("no triton")
    with pytest.raises(PluginError, match="no triton") as caught:
        load_plugins([failing_import(error)], environ={"PARARNN_STRICT": "1"}, core="0.1.0")
    assert caught.value.__cause__ is error


def test_strict_mode_accepts_what_loads(candidate, cell):
    assert load_one(candidate(pararnn_register_cells=[cell()]), {"PARARNN_STRICT": "1"}).state is PluginState.LOADED


@pytest.mark.parametrize("value", ["toy", "toy-cells", "Toy_Cells", "other, toy"])
def test_a_disabled_plugin_is_not_imported(value):
    candidate = Candidate(name="toy", distribution="toy-cells", version="1", load=lambda: pytest.fail("imported"))
    assert load_one(candidate, {"PARARNN_DISABLE_PLUGINS": value}).state is PluginState.DISABLED


def test_the_allow_list_leaves_out_all_others_but_the_core(candidate):
    candidates = [candidate("core", distribution="pararnn-core"), candidate("a", distribution="dist-a"), candidate("b", distribution="dist-b")]
    states = [record.state for record in load_plugins(candidates, environ={"PARARNN_PLUGINS": "dist-b"}, core="0.1.0")]
    assert states == [PluginState.LOADED, PluginState.DISABLED, PluginState.LOADED]


@pytest.mark.parametrize("variable", ["PARARNN_PLUGINS", "PARARNN_DISABLE_PLUGINS"])
def test_a_variable_that_names_no_plugin_is_warned_about(candidate, variable):
    with pytest.warns(PluginWarning, match="'tpy', which matches no plugin; there are toy, toy-cells"):
        load_plugins([candidate()], environ={variable: "tpy"}, core="0.1.0")


@pytest.mark.parametrize(
    ("requires", "core", "excluded_by"),
    [
        (["pararnn-core>=0.2"], "0.1.0", "pararnn-core>=0.2"),
        (["PaRaRNN_Core<0.1"], "0.1.0", "PaRaRNN_Core<0.1"),
        (["torch>=9", "pararnn-core>=0.1,<0.2"], "0.1.0", None),
        (["pararnn-core>=0.1"], "0.2.0.dev1", None),
        (["pararnn-core>=9; extra == 'all'"], "0.1.0", None),
        (["not a requirement !!", "pararnn-core>=0.1"], "0.1.0", None),
        (["pararnn-core>=9"], UNKNOWN_VERSION, None),
    ],
)
def test_a_requirement_excludes_the_core_exactly_when_its_versions_do(requires, core, excluded_by):
    assert exclusion(requires, core) == excluded_by


def test_an_incompatible_plugin_is_not_imported_and_says_which_versions_clash():
    candidate = Candidate(name="new", distribution="new-cells", version="3", load=lambda: pytest.fail("imported"), requires=("pararnn-core>=0.2",))
    with pytest.warns(PluginWarning, match=r"requires pararnn-core>=0.2 and pararnn-core 0.1.0 is running"):
        (record,) = load_plugins([candidate], environ={}, core="0.1.0")
    assert record.state is PluginState.INCOMPATIBLE


def test_an_unknown_hook_breaks_the_plugin_and_names_the_nearest(candidate, cell):
    record = load_one(candidate(pararnn_register_cels=[cell()]))
    assert record.state is PluginState.BROKEN
    assert "pararnn_register_cels" in record.detail
    assert "pararnn_register_cells" in record.detail
    assert record.entries == ()


def unmarked():
    return []


@pytest.mark.parametrize(
    ("name", "remedy"), [("pararnn_register_cells", "hookimpl"), ("pararnn_register_cels", "the nearest is pararnn_register_cells")]
)
def test_a_hook_without_its_mark_is_not_ignored_silently(name, remedy):
    module = types.ModuleType("toy")
    setattr(module, name, unmarked)
    record = load_one(Candidate(name="toy", distribution="toy-cells", version="1", load=lambda: module))
    assert record.state is PluginState.BROKEN
    assert remedy in record.detail


def test_packages_with_the_prefix_of_hooks_may_be_imported_by_a_hook_module(candidate):
    made = candidate()
    made.load().pararnn_toys = types.ModuleType("pararnn_toys")
    assert load_one(made).state is PluginState.LOADED


def test_an_optional_hook_of_a_later_core_is_left_alone(candidate, cell):
    made = candidate(pararnn_register_cells=[cell()])
    made.load().pararnn_register_dreams = hookspecs.hookimpl(lambda: 1, optionalhook=True)
    assert load_one(made).state is PluginState.LOADED


def takes_an_argument(registry):
    return []


@pytest.mark.parametrize(
    ("result", "complaint"),
    [
        (None, "NoneType"),
        (CellSpec(name="A", target="a:b", summary="", example="a:c"), "return a list"),
        ("ToyCell", "return a list"),
        (["ToyCell"], "a str"),
        ([CommandSpec(name="A", target="a:b", summary="")], "each must be a CellSpec"),
        (takes_an_argument, "registry"),
        (lambda: 1 / 0, "ZeroDivisionError"),
    ],
    ids=["nothing", "bare-record", "text", "text-in-list", "other-record", "argument", "raises"],
)
def test_a_hook_with_a_wrong_result_breaks_its_plugin_only(candidate, cell, result, complaint):
    with pytest.warns(PluginWarning):
        broken, fine = load_plugins(
            [candidate("bad", pararnn_register_cells=result), candidate("good", pararnn_register_cells=[cell()])], environ={}, core="0.1.0"
        )
    assert broken.state is PluginState.BROKEN
    assert complaint in broken.detail
    assert fine.state is PluginState.LOADED


@pytest.mark.parametrize("fields", [{"name": ""}, {"name": "a:b"}, {"name": "a b"}, {"target": "no_colon"}, {"example": "module:"}], ids=str)
def test_a_record_with_a_malformed_field_breaks_its_plugin(candidate, fields):
    def pararnn_register_cells():
        return [CellSpec(**{"name": "A", "target": "a:b", "summary": "", "example": "a:c", **fields})]

    assert load_one(candidate(pararnn_register_cells=pararnn_register_cells)).detail.startswith("CellSpec")


def test_a_name_offered_twice_by_one_distribution_breaks_the_second_plugin(candidate, cell):
    candidates = [candidate("first", pararnn_register_cells=[cell()]), candidate("second", pararnn_register_cells=[cell()])]
    with pytest.warns(PluginWarning, match="plugin 'first' of the same distribution"):
        first, second = load_plugins(candidates, environ={}, core="0.1.0")
    assert (first.state, second.state) == (PluginState.LOADED, PluginState.BROKEN)


def test_one_backend_name_may_serve_several_operations(candidate, backend):
    record = load_one(candidate(pararnn_register_backends=[backend("torch", op="a"), backend("torch", op="b")]))
    assert record.state is PluginState.LOADED


def test_a_cell_may_not_hide_behind_a_name_of_the_core(candidate, cell):
    record = load_one(candidate(pararnn_register_cells=[cell("solve")]), reserved=frozenset({"solve"}))
    assert record.state is PluginState.BROKEN
    assert "pararnn.solve" in record.detail


def write_distribution(folder, name, version="1.0", entry_points="[pararnn]\ntoy = toy_hooks\n"):
    metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: pararnn-core>=0.1\n")
    (metadata / "entry_points.txt").write_text(entry_points)


def test_discovery_finds_plugins_on_the_path_without_importing_them(tmp_path, monkeypatch):
    write_distribution(tmp_path, "Toy_Cells")
    monkeypatch.syspath_prepend(str(tmp_path))
    (found,) = [candidate for candidate in discover() if candidate.distribution == "toy-cells"]
    assert (found.name, found.version, found.requires) == ("toy", "1.0", ("pararnn-core>=0.1",))
    assert "toy_hooks" not in sys.modules


def test_the_first_copy_on_the_path_hides_later_ones(tmp_path, monkeypatch):
    for version in ("1.0", "2.0"):
        write_distribution(tmp_path / version, "toy-cells", version)
        monkeypatch.syspath_prepend(str(tmp_path / version))
    assert [candidate.version for candidate in discover() if candidate.distribution == "toy-cells"] == ["2.0"]


def test_unreadable_entry_points_break_their_distribution_only(tmp_path, monkeypatch):
    write_distribution(tmp_path, "torn-cells", entry_points="[pararnn]\nthis line has no equals sign\n")
    write_distribution(tmp_path, "toy-cells", entry_points="[pararnn]\ntoy = json\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = [candidate for candidate in discover() if candidate.distribution in ("torn-cells", "toy-cells")]
    with pytest.warns(PluginWarning, match=r"entry_points.txt cannot be read"):
        states = {record.provenance.distribution: record.state for record in load_plugins(found, environ={}, core="0.1.0")}
    assert states == {"torn-cells": PluginState.BROKEN, "toy-cells": PluginState.LOADED}


def test_the_core_offers_its_own_hooks_even_when_it_is_not_installed(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: iter(()))
    (core,) = discover()
    assert load_one(core).state is PluginState.LOADED
    assert core.distribution == "pararnn-core"


def test_the_version_comes_from_the_source_tree_when_nothing_is_installed(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "pararnn-core"\nversion = "7.8"\n')
    monkeypatch.setattr(distributions, "version_of", lambda name: None)
    monkeypatch.setattr(distributions, "__file__", str(tmp_path / "src" / "pararnn" / "distributions.py"))
    assert distributions.core_version.__wrapped__() == "7.8"
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "somebody-else"\nversion = "9"\n')
    assert distributions.core_version.__wrapped__() == UNKNOWN_VERSION


def test_a_second_distribution_with_the_import_name_is_a_rival():
    assert import_name_rivals({"pararnn": ["pararnn-core", "Pararnn_Torch"], "numpy": ["numpy"]}) == ("pararnn-torch",)
    assert import_name_rivals({"pararnn": ["pararnn-core"]}) == ()
    assert import_name_rivals({}) == ()
