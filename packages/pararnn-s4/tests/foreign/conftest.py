"""What layers of lrnnx and state-spaces held and gave, from `golden/`."""

import json
from pathlib import Path

import pytest
import torch

from pararnn_s4 import from_lrnnx, from_state_spaces, from_state_spaces_s4d

LOADERS = {
    "lrnnx.S4": from_lrnnx,
    "lrnnx.S4D": from_lrnnx,
    "state_spaces.S4Block": from_state_spaces,
    "state_spaces.S4D": from_state_spaces_s4d,
}


class Golden:
    """One file: a layer of another library, its input and its output."""

    def __init__(self, path):
        self.record = json.loads(path.read_text(encoding="utf-8"))
        self.arguments = self.record["arguments"]
        self.float32_error = self.record["float32_error"]
        self.state_dict = {}
        for name, value in self.record["state_dict"].items():
            # Shared tensors of a layer are shared here too.
            self.state_dict[name] = self.state_dict[value] if isinstance(value, str) else self.read(value)
        self.x, self.y = self["x"].float(), self["y"]
        call = self.record["call"]
        self.call = {"rate": call.get("rate", 1.0), "lengths": torch.tensor(call["lengths"]) if "lengths" in call else None}

    def __getitem__(self, name):
        return self.read(self.record[name], torch.float64)

    @staticmethod
    def read(value, dtype=torch.float32):
        whole = all(isinstance(number, int) for number in value["values"])
        return torch.tensor(value["values"], dtype=torch.int64 if whole else dtype).reshape(value["shape"])

    @property
    def load(self):
        return LOADERS[self.record["layer"]]

    def layer(self, dtype=torch.float32):
        tensors = {name: value.to(dtype) if value.is_floating_point() else value for name, value in self.state_dict.items()}
        return self.load(tensors, **self.arguments).eval()

    @property
    def time(self):
        return 2 if self.arguments.get("transposed", True) else 1


@pytest.fixture
def golden():
    """Reads a file by its name."""
    return lambda name: Golden(Path(__file__).parent / "golden" / f"{name}.json")
