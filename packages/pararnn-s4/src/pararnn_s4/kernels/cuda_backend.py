"""The three products in CUDA C++, compiled on this machine when the backend is first named; `csrc` holds the sources.

The library is kept in torch's folder of extensions (`TORCH_EXTENSIONS_DIR`), under a name that contains a digest of the sources and of what they
were compiled for, so that neither a new version nor another GPU meets an old library. `auto` takes this backend once its library is
there: compiling takes about a minute, which nobody should wait for unasked. `build_cuda_kernels()` compiles ahead of time.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import platform
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pararnn.errors import BackendError, sentence
from pararnn.selection import Request, clear_cache

SOURCES = ("bindings.cpp", "vandermonde.cu", "cauchy.cu")
HEADERS = ("kernels.h", "common.cuh")
DTYPES = ("complex64", "complex128")
OLDEST_CAPABILITY = (7, 0)
# Steps are counted in floats, exact up to there.
LONGEST = {"complex64": 1 << 24, "complex128": 1 << 31}
WIDEST_GRID = 65535
# From so many results on the tensor cores win, although Triton takes longer to launch.
WORTH_TENSOR_CORES = 1 << 24


class _Library:
    """The loaded library of this process; the lock lets one thread build while the others wait."""

    lock = threading.Lock()
    module: Any = None


def reasons(request: Request) -> tuple[str, ...]:
    """Obstacles: device, dtype, sizes, no compiler, and for `auto` a library that is not built yet."""
    found = []
    if request.dtype not in DTYPES:
        found.append(f"it works in {' and '.join(DTYPES)}, the request is {request.dtype}")
    if request.option("transformed"):
        found.append("it cannot run inside a transform of torch.func")
    longest = LONGEST.get(request.dtype)
    if longest is not None and request.size("length", 1) > longest:
        found.append(f"it counts steps in floats, exact up to {longest} in {request.dtype}; the length is {request.size('length')}")
    for axis in ("copies", "groups"):
        if request.size(axis, 1) > WIDEST_GRID:
            found.append(f"a launch has at most {WIDEST_GRID} {axis}, the request has {request.size(axis)}")
    if request.device != "cuda":
        found.append(f"it runs on CUDA devices, the tensors are on {request.device}")
    elif not torch.cuda.is_available():
        found.append("it runs on CUDA devices, and torch sees none here")
    elif (capability := torch.cuda.get_device_capability()) < OLDEST_CAPABILITY:
        found.append(f"it needs compute capability {OLDEST_CAPABILITY[0]}.{OLDEST_CAPABILITY[1]}, this GPU has {capability[0]}.{capability[1]}")
    elif not request.option("named") and _is_for_tensor_cores(request):
        found.append("so long a product is faster on tensor cores, which `triton` uses; name this backend to have it anyway")
    elif not is_built():
        found.extend(_obstacles_to_building())
        if not request.option("named"):
            found.append("its library is not built yet, which takes about a minute; name the backend, or call pararnn_s4.build_cuda_kernels()")
    return tuple(found)


def probe() -> tuple[str, ...] | None:
    """Build the library where that is possible, and compute a small product with its gradients."""
    found = reasons(Request.of("s4/vandermonde", device="cuda" if torch.cuda.is_available() else "cpu", dtype="complex64", options={"named": True}))
    if found:
        return found
    v, x = (torch.full((1, 2, 3), -0.1 + 0.2j, device="cuda", requires_grad=True) for _ in range(2))
    vandermonde(v, x[0], 5, conj=True).sum().backward()
    return None


def is_built() -> bool:
    """Whether the library for this machine is loaded or lies ready."""
    return _Library.module is not None or _file().exists()


def build_cuda_kernels(*, verbose: bool = False) -> Path:
    """Compile the kernels for this machine's GPU unless that is done, and let `auto` use them; the library's path.

    Raises:
        BackendError: there is no GPU or no compiler, or the compiler failed; the message holds its words.
    """
    library(verbose=verbose)
    return _file()


def library(*, verbose: bool = False) -> Any:
    """The loaded library, compiled first where it has to be."""
    if _Library.module is not None:
        return _Library.module
    with _Library.lock:
        if _Library.module is None:
            _Library.module = _load(verbose)
            # What `auto` took so far was chosen without this backend.
            clear_cache()
    return _Library.module


def vandermonde(v: Tensor, x: Tensor, length: int, *, conj: bool) -> Tensor:
    """`(groups, copies, length)` from v `(groups, copies, state)` and x `(copies, state)`; see `pararnn_s4.kernels.api.vandermonde`.

    Here and below, numerators without `groups` give results without them.
    """
    result: Tensor = library().vandermonde(v, x, length, conj=conj)
    return result


def vandermonde_transpose(u: Tensor, x: Tensor) -> Tensor:
    """`(groups, copies, state)` from u `(groups, copies, length)` and x `(copies, state)`; see `pararnn_s4.kernels.api.vandermonde_transpose`."""
    result: Tensor = library().vandermonde_transpose(u, x)
    return result


def cauchy(v: Tensor, z: Tensor, w: Tensor, *, conj: bool) -> Tensor:
    """`(groups, copies, length)` from v `(groups, copies, state)`, z `(1 or copies, length)`, w `(copies, state)`; see `kernels.api.cauchy`."""
    result: Tensor = library().cauchy(v, z, w, conj=conj)
    return result


for _product in (vandermonde, vandermonde_transpose, cauchy):
    setattr(_product, "takes_rows", True)  # noqa: B010 -- functions have no declared attributes


def _load(verbose: bool) -> Any:
    if not torch.cuda.is_available():
        raise BackendError("the CUDA kernels need a GPU to be compiled for, and torch sees none")
    file = _file()
    if not file.exists():
        if obstacles := _obstacles_to_building():
            raise BackendError(f"the CUDA kernels cannot be compiled: {'; '.join(obstacles)}", reasons=obstacles)
        return _compile(file, verbose)
    return _import(file)


def _compile(file: Path, verbose: bool) -> Any:
    """Compile beside the final place and move the library there in one step, so that no process ever sees half of it."""
    from torch.utils import cpp_extension

    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        try:
            module = cpp_extension.load(
                name=_name(),
                sources=[str(_sources() / source) for source in SOURCES],
                extra_cflags=["-O3"],
                extra_cuda_cflags=["-O3"],
                build_directory=folder,
                verbose=verbose,
            )
        except (RuntimeError, OSError) as error:
            said = [line.strip() for line in str(error).splitlines() if "error" in line.lower()][:3] or [sentence(error)]
            raise BackendError(
                f"compiling the CUDA kernels failed ({' | '.join(said)}); `build_cuda_kernels(verbose=True)` shows all of it"
            ) from error
        (Path(folder) / file.name).replace(file)
    return module


def _import(file: Path) -> Any:
    specification = importlib.util.spec_from_file_location(_name(), file)
    if specification is None or specification.loader is None:
        raise BackendError(f"{file} is no library that Python can load; remove it and try again")
    module = importlib.util.module_from_spec(specification)
    try:
        specification.loader.exec_module(module)
    except ImportError as error:
        raise BackendError(f"{file} cannot be loaded ({error}); remove it and try again") from error
    return module


def _is_for_tensor_cores(request: Request) -> bool:
    results = request.size("groups", 1) * request.size("copies", 1) * request.size("length", 1)
    return request.op != "s4/cauchy" and results >= WORTH_TENSOR_CORES and importlib.util.find_spec("triton") is not None


def _obstacles_to_building() -> list[str]:
    from torch.utils import cpp_extension

    found = []
    if cpp_extension.CUDA_HOME is None or not (Path(cpp_extension.CUDA_HOME) / "bin" / "nvcc").exists():
        found.append("nvcc is not here; install the CUDA toolkit of torch's version, or set CUDA_HOME")
    if not cpp_extension.is_ninja_available():
        found.append("ninja is not here; pip install ninja")
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        found.append("a C++ compiler is not here; install g++, or set CXX")
    return found


def _sources() -> Path:
    return Path(__file__).parent / "csrc"


@functools.cache
def _name() -> str:
    digest = hashlib.sha256()
    for source in (*SOURCES, *HEADERS):
        digest.update((_sources() / source).read_bytes())
    capability = torch.cuda.get_device_capability() if torch.cuda.is_available() else None
    circumstances = (
        torch.__version__,
        torch.version.cuda,
        capability,
        sys.version_info[:2],
        platform.machine(),
        os.environ.get("TORCH_CUDA_ARCH_LIST"),
    )
    digest.update(repr(circumstances).encode())
    return f"pararnn_s4_{digest.hexdigest()[:16]}"


def _file() -> Path:
    """Where the library of this name lies, or will."""
    from torch.utils import cpp_extension

    root = os.environ.get("TORCH_EXTENSIONS_DIR") or cpp_extension.get_default_build_root()
    return Path(root) / _name() / f"{_name()}.so"
