"""Checks that the author of a learning rule, or of a layer, runs on it; plain functions, usable without pytest.

    report = check_learner(MyRule)                       # runs every check, raises ConformanceError with all that failed
    report = check_layer(MyLayer(3, 8), inputs)          # inputs (batch, *input) that suit the layer
    check_resume(Maker(MyRule))                          # one check alone

With pytest, one test a check:

    @pytest.mark.parametrize("check", learner_checks().values(), ids=learner_checks())
    def test_my_rule(check):
        check(Maker(MyRule))

Names load when they are first used: importing this package imports no torch.
"""

from __future__ import annotations

import pkgutil
from typing import Any

PUBLIC = {
    "Maker": "samples",
    "check_layer": "kit",
    "check_learner": "kit",
    "layer_checks": "kit",
    "learner_checks": "kit",
}
CHECK_MODULES = ("learning", "streams", "batches", "ownership", "layer_steps", "layer_formulas", "layer_maps")

__all__ = list(PUBLIC)


def __getattr__(name: str) -> Any:
    """A public name, or a check of any module of the kit."""
    modules = (PUBLIC[name],) if name in PUBLIC else CHECK_MODULES if name.startswith("check_") else ()
    for module in modules:
        found = getattr(pkgutil.resolve_name(f"{__name__}.{module}"), name, None)
        if found is not None:
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names."""
    return sorted({*globals(), *PUBLIC})
