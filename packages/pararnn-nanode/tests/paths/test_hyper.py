import pytest
import torch

from pararnn_nanode import HyperPath


def test_the_network_of_time_is_the_formula():
    path = HyperPath((2, 2), 3, span=(1.0, 3.0), dtype=torch.float64)
    t = 1.4
    tau = -0.6
    features = torch.tanh(path.rate * tau + path.shift)
    expected = path.coefficients[0] + sum(z * c for z, c in zip(features, path.coefficients[1:], strict=True))
    torch.testing.assert_close(path.at(t), expected)


def exact_features(path, s, steps=4000):
    """The equation of the features, by the midpoint rule with many steps."""
    z = path.first.detach().clone()
    h = s / steps
    for k in range(steps):

        def slope(place, z):
            return torch.tanh(path.mix @ z + place * path.rate + path.shift)

        z = z + h * slope((k + 0.5) * h, z + h / 2 * slope(k * h, z))
    return z


@pytest.mark.parametrize("span", [(0.0, 1.0), (2.0, -2.0)], ids=str)
@pytest.mark.parametrize("s", [0.0, 0.31, 0.5, 1.0])
@torch.no_grad()
def test_the_features_of_the_recurrent_variant_solve_their_equation(s, span):
    torch.manual_seed(0)
    path = HyperPath((2, 2), 3, variant="recurrent", steps=32, span=span, dtype=torch.float64)
    times = torch.tensor(span[0] + (span[1] - span[0]) * s, dtype=torch.float64)
    torch.testing.assert_close(path.basis(times, times)[1:], exact_features(path, s), rtol=1e-5, atol=1e-6)


def test_the_recurrent_variant_stays_as_it_is_outside_the_span():
    path = HyperPath((2, 2), 3, variant="recurrent")
    torch.testing.assert_close(path.at(-7.0), path.at(0.0))
    torch.testing.assert_close(path.at(9.0), path.at(1.0))


def test_the_recurrent_variant_is_smooth_across_its_own_steps():
    torch.manual_seed(0)
    path = HyperPath((2, 2), 3, variant="recurrent", steps=4, dtype=torch.float64)
    torch.testing.assert_close(path.derivative(0.5 - 1e-9), path.derivative(0.5 + 1e-9), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("variant", ["mlp", "recurrent"])
def test_every_parameter_of_the_small_network_learns(variant):
    torch.manual_seed(0)
    path = HyperPath((3, 3), 4, variant=variant)
    path.at(0.6).sum().backward()
    for name, parameter in path.named_parameters():
        assert parameter.grad.any(), name
