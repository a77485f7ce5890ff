"""Under importlib mode test modules cannot import their neighbours; this makes `stepwise_engine` importable."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
