"""What importing and using the package does to the process it is in: nothing."""

import subprocess
import sys

import pararnn_s4

NAMES = sorted(pararnn_s4.HOMES)

PROGRAM = """
import logging, os, sys, warnings
import torch

def settings():
    backends = torch.backends
    return {
        "default dtype": torch.get_default_dtype(), "default device": torch.get_default_device(), "grad": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(), "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul precision": torch.get_float32_matmul_precision(), "einsum": (backends.opt_einsum.enabled, backends.opt_einsum.strategy),
        "cudnn": (backends.cudnn.enabled, backends.cudnn.benchmark, backends.cudnn.allow_tf32), "mkldnn": backends.mkldnn.enabled,
        "random numbers": torch.get_rng_state().tolist(), "loggers": list(logging.root.handlers), "level": logging.root.level,
        "filters": list(warnings.filters), "environment": dict(os.environ),
    }

def changes(before):
    return sorted(name for name, value in settings().items() if value != before[name])

torch.manual_seed(0)
before = settings()
from pararnn_s4 import *
assert not changes(before), changes(before)
assert "torch._dynamo" not in sys.modules, "it loads the compiler, which takes a second"
# The first call of any custom operation makes torch load it, which sets a directory and filters warnings.
import torch._dynamo
layers = [S4(4, 8), S4(4, 8, algorithm="cauchy"), S4D(4, 8), S4D(4, 8, method="scan")]
models, x = [*layers, S4Model(4, 2, 8, 1, d_state=8)], torch.randn(2, 9, 4)
before = settings()
for model in models:
    model(x, lengths=[9, 4]).sum().backward()
    model.step(x[:, 0], model.init_state(2))
    model.decoder().step(x[:, 0])
    param_groups(model)
nplr("legs", 8)
assert not changes(before), changes(before)
"""


def test_all_public_names_are_listed_and_can_be_imported_at_once():
    assert sorted(pararnn_s4.__all__) == NAMES
    assert set(NAMES) <= set(dir(pararnn_s4))
    found = {}
    exec("from pararnn_s4 import *", found)
    assert set(NAMES) <= set(found)


def test_import_and_use_leave_the_process_as_it_is():
    # Torch warns where numpy is not installed; what is asked here is what the package does.
    done = subprocess.run([sys.executable, "-W", "ignore:Failed to initialize NumPy", "-c", PROGRAM], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
