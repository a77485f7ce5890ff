"""Calls that cannot be answered rightly are errors in sentences."""

import pytest
import torch

from pararnn.errors import ConfigError, DTypeError, InputError, ShapeError
from pararnn_nanode import odeint, odeint_adjoint


def decay(t, y):
    return -y


Y0 = torch.ones(2, dtype=torch.float64)
CALLS = {
    "a single time": (InputError, "single time", lambda: odeint(decay, Y0, [1.0])),
    "times that turn": (InputError, "turn around at index 1 \\(0, 1, 0.5\\)", lambda: odeint(decay, Y0, [0.0, 1.0, 0.5])),
    "times that turn, fixed": (InputError, "turn around", lambda: odeint(decay, Y0, [0.0, 1.0, 0.5], method="euler")),
    "a time that is NaN": (InputError, "finite", lambda: odeint(decay, Y0, [0.0, float("nan")])),
    "a whole-number state": (DTypeError, "y0.float\\(\\)", lambda: odeint(decay, torch.ones(2, dtype=torch.long), [0, 1])),
    "a tuple of mixed dtypes": (DTypeError, "share one dtype", lambda: odeint(decay, (Y0, Y0.float()), [0, 1])),
    "no state": (ConfigError, "tuple of tensors", lambda: odeint(decay, 1.0 and (1.0,), [0, 1])),
    "another shape": (ShapeError, "\\(2,\\), got \\(\\)", lambda: odeint(lambda t, y: y.sum(), Y0, [0, 1])),
    "another shape in a tuple": (ShapeError, "\\(2,\\), got \\(\\)", lambda: odeint(lambda t, y: (y[0], y[1].sum()), (Y0, Y0), [0, 1])),
    "a tensor for a tuple": (ShapeError, "tuple of 2", lambda: odeint(lambda t, y: y[0], (Y0, Y0), [0, 1])),
    "no tensor": (ConfigError, "NoneType", lambda: odeint(lambda t, y: None, Y0, [0, 1])),
    "a complex slope": (DTypeError, "make y0 torch.complex128", lambda: odeint(lambda t, y: 1j * y, Y0, [0, 1])),
    "an unknown method": (ConfigError, "no method is called 'euler2'", lambda: odeint(decay, Y0, [0, 1], method="euler2")),
    "a method of torchdiffeq alone": (ConfigError, "pass backend='torchdiffeq'", lambda: odeint(decay, Y0, [0, 1], method="dopri8")),
    "an option of fixed methods": (ConfigError, "dopri5 has no option 'step_size'", lambda: odeint(decay, Y0, [0, 1], options={"step_size": 0.1})),
    "an option of adaptive methods": (
        ConfigError,
        "rk4 has no option 'first_step'",
        lambda: odeint(decay, Y0, [0, 1], method="rk4", options={"first_step": 0.1}),
    ),
    "two ways to say steps": (
        ConfigError,
        "pass one of them",
        lambda: odeint(decay, Y0, [0, 1], method="rk4", options={"step_size": 0.1, "grid_constructor": lambda f, y, t: t}),
    ),
    "steps without a length": (
        ConfigError,
        "above 0 and finite, got 0.0",
        lambda: odeint(decay, Y0, [0, 1], method="rk4", options={"step_size": 0.0}),
    ),
    "a grid that misses the end": (
        ConfigError,
        "must start at 0 and end at 1",
        lambda: odeint(decay, Y0, [0, 1], method="rk4", options={"grid_constructor": lambda f, y, t: [0.0, 0.5]}),
    ),
    "no tolerance": (ConfigError, "both 0", lambda: odeint(decay, Y0, [0, 1], rtol=0.0, atol=0.0)),
    "a negative tolerance": (ConfigError, "at least 0", lambda: odeint(decay, Y0, [0, 1], rtol=-1e-3)),
    "a tolerance with a gradient": (ConfigError, "rtol.detach\\(\\)", lambda: odeint(decay, Y0, [0, 1], rtol=torch.ones((), requires_grad=True))),
    "an unknown gradient": (ConfigError, "backprop, checkpoint, adjoint", lambda: odeint(decay, Y0, [0, 1], gradient="magic")),
    "an unknown backend": (ConfigError, "'native' or 'torchdiffeq'", lambda: odeint(decay, Y0, [0, 1], backend="scipy")),
    "samples and times that do not match": (ShapeError, "\\(samples, times\\)", lambda: odeint(decay, Y0, torch.zeros(3, 2))),
    "another adjoint for fixed steps": (
        ConfigError,
        "same method",
        lambda: odeint_adjoint(decay, Y0, [0, 1], method="rk4", adjoint_method="dopri5", adjoint_params=()),
    ),
}


@pytest.mark.parametrize(("error", "message", "call"), CALLS.values(), ids=CALLS)
def test_it_is_refused(error, message, call):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("error", "message", "y0", "t", "options"),
    [
        (DTypeError, "without saying so", Y0.bfloat16(), [0.0, 1.0], {}),
        (InputError, "at least two times", Y0, torch.zeros(2, 2), {}),
        (ConfigError, "backprop and adjoint", Y0, [0.0, 1.0], {"gradient": "checkpoint"}),
        (ConfigError, "backend='native' only", Y0, [0.0, 1.0], {"event_fn": decay}),
    ],
    ids=["half precision", "times of samples", "checkpoint", "event"],
)
def test_torchdiffeq_is_kept_from_what_it_does_wrong(torchdiffeq, error, message, y0, t, options):
    with pytest.raises(error, match=message):
        odeint(decay, y0, t, backend="torchdiffeq", **options)
