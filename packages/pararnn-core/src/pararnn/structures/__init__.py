"""Jacobian structures: families of linear maps closed under composition, one class each."""

from pararnn.structures.base import Structure
from pararnn.structures.block_diagonal import BlockDiagonal
from pararnn.structures.dense import Dense
from pararnn.structures.diagonal import Diagonal

__all__ = ["BlockDiagonal", "Dense", "Diagonal", "Structure"]
