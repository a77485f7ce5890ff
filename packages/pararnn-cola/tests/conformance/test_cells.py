"""The layers that are cells of the core too, under the core's kit."""

from pararnn.conformance import parametrize_with_checks
from pararnn_cola import plugin


@parametrize_with_checks(*plugin.pararnn_register_cells())
def test_conformance(check):
    check()
