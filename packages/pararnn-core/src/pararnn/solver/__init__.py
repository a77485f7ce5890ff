"""Solving recurrences in parallel over time: multiple shooting, exact adjoints, and the walk they are held to."""

from pararnn.solver.api import newton_apply, sequential_apply, solve
from pararnn.solver.config import NewtonConfig
from pararnn.solver.planner import Plan
from pararnn.solver.result import SolveResult, Status

__all__ = ["NewtonConfig", "Plan", "SolveResult", "Status", "newton_apply", "sequential_apply", "solve"]
