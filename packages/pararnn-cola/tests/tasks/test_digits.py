import sys

import pytest
import torch

from pararnn.errors import ConfigError
from pararnn_cola.tasks import Digits


def test_images_are_read_row_by_row_and_split_without_loss(scikit_learn):
    task = Digits()
    images = scikit_learn.load_digits().images
    both = torch.cat([task.train[0], task.test[0]])
    labels = torch.cat([task.train[1], task.test[1]])
    assert (len(task.train[0]), len(task.test[0])) == (1400, 397)
    found = sorted((tuple((image * 16).flatten().tolist()), int(label)) for image, label in zip(both, labels, strict=True))
    pairs = zip(images, scikit_learn.load_digits().target, strict=True)
    assert found == sorted((tuple(image.flatten().tolist()), int(label)) for image, label in pairs)


def test_the_split_is_the_same_every_time_and_the_seed_decides_it(scikit_learn):
    assert torch.equal(Digits().test[0], Digits("last").test[0])
    assert not torch.equal(Digits().test[0], Digits(seed=1).test[0])


def test_a_batch_has_eight_steps_of_eight(scikit_learn, generator):
    batch = Digits("last").batch(5, generator)
    assert batch.inputs.shape == (5, 8, 8)
    assert batch.weights.tolist() == [0.0] * 7 + [1.0]


def test_without_scikit_learn_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ConfigError, match=r"pip install 'pararnn-cola\[tasks\]'"):
        Digits()
