import pytest
import torch
from torch import nn

from pararnn_cola.network import Network


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(5)


@pytest.fixture
def network_for():
    """Builds a float64 network that suits a task."""

    def make(task, state_size=7, seed=0, **options):
        return Network.rnn(task.input_size, state_size, task.output_size, seed=seed, dtype=torch.float64, **options)

    return make


@pytest.fixture
def ensemble_of():
    """Builds the ensemble whose runs are the given networks."""

    def make(networks):
        together = Network.rnn(
            networks[0].recurrent[0].input_size, networks[0].recurrent[0].state_size, networks[0].readout.output_size, dtype=torch.float64
        )
        for name, _ in list(together.named_parameters()):
            module = together.get_submodule(name.rpartition(".")[0])
            setattr(module, name.rpartition(".")[2], nn.Parameter(torch.stack([one.get_parameter(name).detach() for one in networks])))
        return together

    return make


@pytest.fixture
def scipy_integrate():
    return pytest.importorskip("scipy.integrate")


@pytest.fixture
def scikit_learn():
    return pytest.importorskip("sklearn.datasets")
