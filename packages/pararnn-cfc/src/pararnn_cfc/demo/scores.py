"""Errors of forecasts, by horizon."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Score:
    """Errors of one method in ppm.

    Attributes:
        rmse, mae: root mean squared and mean absolute error, over all horizons.
        rmse_by_horizon, mae_by_horizon: the same for every horizon, from 1 week ahead up.
        forecasts: how many were compared with a measurement.
    """

    rmse: float
    mae: float
    rmse_by_horizon: list[float]
    mae_by_horizon: list[float]
    forecasts: int

    @classmethod
    def of(cls, forecasts: Tensor, targets: Tensor) -> Self:
        """The score of `forecasts` against `targets`, both `(origins, horizons)`; targets that are NaN do not count, forecasts that are do."""
        known = ~targets.isnan()
        errors = torch.where(known, forecasts - targets, 0)
        count = known.sum(dim=0)
        return cls(
            rmse=float((errors.square().sum() / count.sum()).sqrt()),
            mae=float(errors.abs().sum() / count.sum()),
            rmse_by_horizon=(errors.square().sum(dim=0) / count).sqrt().tolist(),
            mae_by_horizon=(errors.abs().sum(dim=0) / count).tolist(),
            forecasts=int(count.sum()),
        )
