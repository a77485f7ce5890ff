import threading

import pytest

from pararnn import registry as registry_module
from pararnn.errors import AmbiguousNameError, ConfigError, PluginError, PluginWarning, UnknownNameError
from pararnn.registry import HOMES, Registry, installed, reset, using
from pararnn.specs import CellSpec, LearnerSpec, OpSpec


def registry_of(*candidates, environ=None):
    return Registry.of(candidates, environ=environ or {})


def test_a_name_leads_to_the_object_and_to_who_offers_it(candidate, cell, objects):
    cells = registry_of(candidate(pararnn_register_cells=[cell()])).cells
    assert cells["ToyCell"].load() is objects.ToyCell
    assert cells["toy-cells:ToyCell"] is cells["ToyCell"]
    assert cells["ToyCell"].provenance.plugin == "toy"
    assert list(cells) == ["ToyCell"]


def test_a_name_of_two_distributions_must_be_qualified(candidate, cell):
    cells = registry_of(*(candidate(name, distribution=f"dist-{name}", pararnn_register_cells=[cell()]) for name in "ab")).cells
    with pytest.raises(AmbiguousNameError, match="'dist-a:ToyCell' or 'dist-b:ToyCell'"):
        cells["ToyCell"]
    assert cells["dist-b:ToyCell"].provenance.distribution == "dist-b"
    assert list(cells) == ["dist-a:ToyCell", "dist-b:ToyCell"]
    assert all(cells[name] for name in cells)


def test_a_distribution_that_does_not_offer_the_name_is_unknown(candidate, cell):
    cells = registry_of(candidate(pararnn_register_cells=[cell()])).cells
    with pytest.raises(UnknownNameError):
        cells["other:ToyCell"]
    assert "other:ToyCell" not in cells


def test_an_unknown_name_comes_with_close_matches(candidate, cell):
    with pytest.raises(UnknownNameError, match=r"no installed plugin offers a cell named 'toycel'; close: 'ToyCell'"):
        registry_of(candidate(pararnn_register_cells=[cell()])).cells["toycel"]


@pytest.mark.parametrize(("name", "meant"), [("ParaRnn", "ParaRNN"), ("Diag", "Diagonal"), ("Rul", "Rule"), ("ToyCel", "ToyCell")])
def test_a_misspelt_public_name_is_compared_with_those_of_the_core_and_of_learners_too(candidate, cell, name, meant):
    learner = LearnerSpec(name="Rule", target="a:b", summary="")
    registry = registry_of(candidate(pararnn_register_cells=[cell()], pararnn_register_learners=[learner]))
    with pytest.raises(UnknownNameError, match=f"close: .*{meant!r}"):
        registry.public_name(name)


def test_a_name_of_the_core_is_no_close_cell(candidate, cell):
    with pytest.raises(UnknownNameError) as caught:
        registry_of(candidate(pararnn_register_cells=[cell()])).cells["ParaRnn"]
    assert "close" not in str(caught.value)


def test_an_unknown_name_says_which_plugins_could_not_be_loaded(candidate, cell):
    with pytest.warns(PluginWarning):
        registry = registry_of(candidate(pararnn_register_cells=[cell()]), candidate("other", pararnn_register_cells=lambda: 1 / 0))
    with pytest.raises(UnknownNameError, match="1 plugin could not be loaded: other;"):
        registry.public_name("Missing")


@pytest.mark.parametrize(("name", "home"), HOMES.items(), ids=HOMES)
def test_a_name_of_a_known_family_says_what_to_install(name, home):
    with pytest.raises(UnknownNameError, match=f"pip install {home}"):
        registry_of().cells[name]


def test_a_misspelt_name_of_a_known_family_says_what_to_install():
    with pytest.raises(UnknownNameError, match="'ParaCfC': pararnn-cfc does: pip install pararnn-cfc"):
        registry_of().cells["paracfc"]


def test_a_family_that_is_installed_and_broken_is_not_to_be_installed_again(candidate):
    broken = candidate("cfc", distribution="pararnn-cfc", pararnn_register_cells=lambda: 1 / 0)
    with pytest.warns(PluginWarning):
        registry = registry_of(broken)
    with pytest.raises(UnknownNameError, match=r"plugin 'cfc' of pararnn-cfc 1.0 is broken: ZeroDivisionError") as caught:
        registry.cells["ParaCfC"]
    assert "pip install" not in str(caught.value)


def test_asking_whether_a_name_is_there_raises_nothing(candidate, cell):
    cells = registry_of(candidate(pararnn_register_cells=[cell()])).cells
    assert "ToyCell" in cells
    assert "toy-cells:ToyCell" in cells
    assert "Nothing" not in cells
    assert cells.get("Nothing") is None


def test_a_target_that_is_not_there_names_the_distribution(candidate, cell, objects):
    cells = registry_of(candidate(pararnn_register_cells=[cell("A", "no_such_module:A"), cell("B", "fake_objects:B")])).cells
    for name in cells:
        with pytest.raises(PluginError, match="reinstall toy-cells"):
            cells[name].load()


def test_backends_are_listed_by_operation(candidate, backend):
    registry = registry_of(candidate(pararnn_register_backends=[backend("torch", op="a"), backend("torch", op="b"), backend("keops", op="b")]))
    assert list(registry.backends("b")) == ["torch", "keops"]
    assert list(registry.backends("none")) == []
    assert registry.backend_ops == ("a", "b")


def test_an_operation_without_backends_is_known(candidate):
    registry = registry_of(candidate(pararnn_register_ops=[OpSpec(name="toy/op", target="a:b", summary="")]))
    assert registry.backend_ops == ("toy/op",)


def test_the_example_of_an_operation_may_be_left_out_and_that_of_a_cell_may_not():
    assert OpSpec(name="toy/op", target="a:b", summary="").example == ""
    with pytest.raises(ConfigError, match="has example='nowhere'"):
        OpSpec(name="toy/op", target="a:b", summary="", example="nowhere")
    with pytest.raises(ConfigError, match="has example=''"):
        CellSpec(name="Toy", target="a:b", summary="", example="")


def test_a_learner_is_a_public_name_too(candidate):
    registry = registry_of(candidate(pararnn_register_learners=[LearnerSpec(name="Rule", target="a:b", summary="")]))
    assert registry.public_name("Rule") is registry.learners["Rule"]
    with pytest.raises(UnknownNameError, match="a cell named 'Other'"):
        registry.public_name("Other")


def test_threads_that_ask_at_once_build_one_registry(monkeypatch):
    built = []
    barrier = threading.Barrier(4)

    def discover():
        built.append(1)
        return ()

    def ask():
        barrier.wait()
        answers.append(installed())

    answers = []
    monkeypatch.setattr(registry_module, "discover", discover)
    with using(Registry(())):
        reset()
        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(built) == 1
    assert len({id(answer) for answer in answers}) == 1


def test_a_hook_module_that_asks_for_the_registry_is_broken_and_nothing_hangs(candidate, monkeypatch):
    monkeypatch.setattr(registry_module, "discover", lambda: (candidate(pararnn_register_cells=lambda: [installed().cells["ToyCell"]]),))
    with using(Registry(())):
        reset()
        with pytest.warns(PluginWarning, match="while it was itself being loaded"):
            installed()


def test_a_registry_is_in_use_only_inside_its_block(candidate, cell):
    before = installed()
    with using(registry_of(candidate(pararnn_register_cells=[cell()]))) as registry:
        assert installed() is registry
    assert installed() is before


def test_every_target_of_the_core_is_below_its_own_package():
    records = [record for record in installed().plugins if record.provenance.distribution == "pararnn-core"]
    targets = [entry.spec.target for record in records for entry in record.entries]
    assert targets
    assert all(target.startswith("pararnn.") for target in targets)


def test_cells_are_names_of_the_package(candidate, cell, objects):
    import pararnn

    with using(registry_of(candidate(pararnn_register_cells=[cell()]))):
        assert pararnn.ToyCell is objects.ToyCell
        assert list(pararnn.cells) == ["ToyCell"]
        assert "ToyCell" in dir(pararnn)
        from pararnn import ToyCell
    assert ToyCell is objects.ToyCell


def test_an_unknown_attribute_says_which_distribution_has_it():
    import pararnn

    with using(Registry(())):
        assert not hasattr(pararnn, "ParaCfC")
        with pytest.raises(AttributeError, match="pip install pararnn-cfc"):
            _ = pararnn.ParaCfC


def test_an_import_of_an_unknown_name_says_which_distribution_has_it():
    with using(Registry(())), pytest.raises(ImportError, match="pip install pararnn-cfc"):
        from pararnn import ParaCfC  # noqa: F401
