import pytest

from pararnn.conformance.pytest_plugin import obstacle_to

pytest_plugins = ["pytester"]

# Takes the required backend for one that works, so that only what tests do about it is left.
ABACUS_WORKS = "import pararnn.conformance.pytest_plugin as plugin; plugin.obstacle_to = lambda name: None"
SKIPS = """
    import pytest

    def test_of_a_backend_that_is_not_there():
        pytest.skip("backend 'abacus' is not here")

    def test_of_something_else():
        pytest.skip("no reason worth failing for")
"""


def run(pytester, *arguments):
    return pytester.runpytest_subprocess("-p", "pararnn.conformance.pytest_plugin", *arguments)


def test_a_backend_that_nobody_offers_is_an_obstacle():
    assert "no installed plugin offers" in obstacle_to("abacus")


def test_a_required_backend_that_is_missing_ends_the_run(pytester):
    pytester.makepyfile("def test_anything(): pass")
    result = run(pytester, "--require-backend", "abacus")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--require-backend abacus: no installed plugin offers*"])


def test_a_skip_for_want_of_a_required_backend_fails(pytester):
    pytester.makeconftest(ABACUS_WORKS)
    pytester.makepyfile(SKIPS)
    run(pytester, "--require-backend", "abacus").assert_outcomes(failed=1, skipped=1)


def test_a_module_that_skips_for_want_of_a_required_backend_fails(pytester):
    pytester.makeconftest(ABACUS_WORKS)
    pytester.makepyfile("import pytest; pytest.skip(\"could not import 'abacus': gone\", allow_module_level=True)")
    run(pytester, "--require-backend", "abacus").assert_outcomes(errors=1)


def test_without_the_option_a_skip_stays_a_skip(pytester):
    pytester.makepyfile(SKIPS)
    run(pytester).assert_outcomes(skipped=2)
