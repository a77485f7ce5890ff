"""The options that S4 and S4D share: everything round the state space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pararnn.errors import ConfigError
from pararnn_s4.layers.checks import check_probability, checked_count, optional_count
from pararnn_s4.modules.activation import ACTIVATIONS, GATED

Method: TypeAlias = Literal["auto", "convolution", "scan"]
Directions: TypeAlias = bool | Literal["exclusive"]


@dataclass(frozen=True, kw_only=True)
class LayerOptions:
    """What a layer does round its state space; `S4` says what each option means.

    Raises:
        ConfigError: a value that cannot work.
    """

    d_model: int
    channels: int = 1
    l_max: int | None = None
    bidirectional: Directions = False
    bottleneck: int | None = None
    gate: int | None = None
    gate_act: str | None = None
    mult_act: str | None = None
    activation: str | None = "gelu"
    final_act: str | None = "glu"
    postact: str | None = None
    dropout: float = 0.0
    tie_dropout: bool = False
    drop_kernel: float = 0.0
    transposed: bool = False
    swap_channels: bool = False
    method: Method = "auto"

    def __post_init__(self) -> None:
        for name in ("d_model", "channels", "l_max", "bottleneck", "gate"):
            checked = checked_count if name in ("d_model", "channels") else optional_count
            object.__setattr__(self, name, checked(name, getattr(self, name)))
        if self.bottleneck is not None and self.d_model % self.bottleneck:
            raise ConfigError(
                f"bottleneck={self.bottleneck} must divide d_model={self.d_model}, so that the state space runs on a whole number of features"
            )
        for name in ("gate_act", "mult_act", "activation", "final_act", "postact"):
            if getattr(self, name) not in (None, GATED, *ACTIVATIONS):
                raise ConfigError(f"{name}={getattr(self, name)!r} is no activation; choose None or one of {', '.join((*ACTIVATIONS, GATED))}")
        if self.mult_act == GATED:
            raise ConfigError("mult_act='glu' would halve the features after the gate; use final_act='glu', or gate, which multiplies as well")
        for name in ("dropout", "drop_kernel"):
            check_probability(name, getattr(self, name))
        if self.postact is not None and self.final_act not in (None, "glu", self.postact):
            raise ConfigError(f"postact={self.postact!r} is the old name of final_act, which is {self.final_act!r}; pass final_act alone")
        if self.bidirectional not in (False, True, "exclusive"):
            raise ConfigError(f"bidirectional must be False, True or 'exclusive', got {self.bidirectional!r}")
        if self.method not in ("auto", "convolution", "scan"):
            raise ConfigError(f"method must be 'auto', 'convolution' or 'scan', got {self.method!r}")
        if self.method == "scan" and (self.bidirectional or self.drop_kernel or self.l_max is not None):
            raise ConfigError("method='scan' walks states and has no kernel: it cannot serve bidirectional, drop_kernel or l_max; use method='auto'")

    @property
    def features(self) -> int:
        """Features that the state space runs on."""
        return self.d_model // (self.bottleneck or 1)

    @property
    def heads(self) -> int:
        """Outputs of the state space for each feature, in one direction."""
        return self.channels * (2 if self.activation == GATED else 1)

    @property
    def ssm_channels(self) -> int:
        """Channels of the state space: the heads of both directions."""
        return self.heads * (2 if self.bidirectional else 1)

    @property
    def last_act(self) -> str | None:
        """The activation after the output linear, None where there is no such linear."""
        return self.postact if self.postact is not None else self.final_act
