"""The sessions of this repository: `nox -s demo` shows the work, `nox` runs the tests, `nox --list` names the rest.

A folder in `packages/` is enough to have a package tested. Environments are kept, so a second run only runs the tests.

What may be set from outside:

- `PARARNN_TORCH_INDEX`: where Linux looks for torch besides PyPI. Unset, it is PyTorch's index of CPU builds, because PyPI's build brings
  gigabytes of CUDA; empty, it is nowhere. Not used where pip is given `find-links`: a build of one's own then takes precedence.
- `PIP_FIND_LINKS`, `PIP_INDEX_URL`, `PIP_CERT`, or the same in pip's configuration: handed on to uv, which reads none of them.
"""

from __future__ import annotations

import ast
import functools
import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import nox

nox.needs_version = ">=2024.4.15"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = True
nox.options.sessions = ["lint", "types", "tests", "matrix", "kernels", "integration", "docs"]

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CONSTRAINTS = "constraints.txt"
OLDEST_TORCH = "torch==2.11.0"
PREFIX = "pararnn-"
FAMILIES = sorted(path.parent.name.removeprefix(PREFIX) for path in Path("packages").glob("*/pyproject.toml") if path.parent.name != "pararnn-core")
PACKAGES = ["core", *FAMILIES]
TEST_TOOLS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis")
ORACLES = ("ncps", "numpy", "scipy", "statsmodels", "matplotlib", "safetensors", "torchdiffeq")
# What each backend needs besides the packages. With numba every test runs; with torch those that `tests` had to leave out, the rest having run
# there; the others run the tests of some packages that name them.
BACKENDS: dict[str, tuple[str, ...]] = {"torch": (), "numba": ("numba",), "keops": ("pykeops",), "triton-interpret": ("triton",)}
TESTED_IN: dict[str, tuple[str, ...]] = {"keops": ("s4",), "triton-interpret": ("core", "cfc", "s4")}
# Backends of packages that need nothing besides torch.
TESTED_WITH_TORCH: dict[str, tuple[str, ...]] = {"s4": ("naive", "blocked", "compiled")}
# Two workers share the machine; more threads in each would only get in each other's way.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting."""
    install(session, "ruff")
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", "--check")


@nox.session
def types(session: nox.Session) -> None:
    """Check the types of every package's source, strictly."""
    install(session, "mypy", "numpy", *TEST_TOOLS, *editable(*PACKAGES))
    session.run("mypy", "--strict", *session.posargs)


@nox.session
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def tests(session: nox.Session, package: str) -> None:
    """Test one package with the core and nothing else, which proves that the rest is optional."""
    install(session, *TEST_TOOLS, *editable(*dict.fromkeys(("core", package))))
    run_pytest(session, f"packages/{PREFIX}{package}/tests")


@nox.session
@nox.parametrize("backend", list(BACKENDS), ids=list(BACKENDS))
def matrix(session: nox.Session, backend: str) -> None:
    """Test one backend, and those that need nothing else, with its dependencies and no others; they have to be there and have to work."""
    name, _, interpret = backend.partition("-")
    environment = {"TRITON_INTERPRET": "1"} if interpret else {}
    # An interpreter takes its time over every number.
    patience = ("--timeout", "600") if interpret else ()
    install(session, *TEST_TOOLS, *ORACLES, *BACKENDS[backend], *editable(*PACKAGES))
    if packages := TESTED_IN.get(backend):
        # No test of that name is a failure of its own: pytest then ends with status 5.
        for package in packages:
            run_pytest(
                session, f"packages/{PREFIX}{package}/tests", "-k", name, "-m", "not gpu", *patience, "--require-backend", name, env=environment
            )
    elif backend == "torch":
        run_pytest(session, *asking_for_modules(), "tests", "-m", "not integration", "--require-backend", name)
        for package, names in TESTED_WITH_TORCH.items():
            required = [argument for each in names for argument in ("--require-backend", each)]
            run_pytest(session, f"packages/{PREFIX}{package}/tests", "-k", " or ".join(names), "-m", "not gpu", *required)
    else:
        run_pytest(session, "packages", "tests", "-m", "not integration", "--require-backend", name)


@nox.session
def kernels(session: nox.Session) -> None:
    """Compile every kernel of the core for a GPU, without one: Triton's interpreter takes much that its compiler does not."""
    install(session, *TEST_TOOLS, "triton", *editable("core"))
    run_pytest(session, "packages/pararnn-core/tests/compiler/gpu/test_kernels_compile.py")


@nox.session
def oldest(session: nox.Session) -> None:
    """Test the core and its compiled cells with the oldest torch that they promise to work with; not part of `nox`."""
    with_another_torch(session, OLDEST_TORCH)


@nox.session
def newest(session: nox.Session) -> None:
    """Test the core and its compiled cells with the newest torch there is, whatever the constraints say of it; not part of `nox`."""
    # What is there from an earlier run would do, unless it is asked for by an upgrade.
    with_another_torch(session, "--upgrade", "torch")


@nox.session
def integration(session: nox.Session) -> None:
    """Build the wheels, install them, and test what needs a real installation: discovery, other people's plugins, the command line."""
    install(session, *TEST_TOOLS, "pip", "hatchling")
    wheels = Path(session.create_tmp()).resolve() / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    session.run("python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), *folders(*PACKAGES))
    built = [str(path) for path in sorted(wheels.glob("*.whl"))]
    install(session, *built, *ORACLES)
    # The version stays the same while the content changes, so an installer would think that it has nothing to do.
    install(session, "--no-deps", "--force-reinstall", *built)
    run_pytest(session, "tests", "-m", "integration", env={"PARARNN_WHEELS": str(wheels)})


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation, warnings being errors, and run every example in it."""
    install(session, *TEST_TOOLS, *ORACLES, "numba", "scikit-learn", "sphinx", "myst-parser", "furo", "sybil", *editable(*PACKAGES))
    session.run("sphinx-build", "-W", "--keep-going", "--quiet", "-b", "html", "docs", "docs/_build/html")
    run_pytest(session, "docs")


@nox.session
def demo(session: nox.Session) -> None:
    """Show the main job on real data; arguments after `--` go to `pararnn demo`."""
    install(session, "-e", f"{folder('core')}[cpu]", "-e", f"{folder('cfc')}[demo]")
    session.run("pararnn", "demo", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Time the backends; arguments after `--` go to `pararnn bench`."""
    install(session, "numba", *editable(*PACKAGES))
    session.run("pararnn", "bench", *session.posargs)


@nox.session
def bundle(session: nox.Session) -> None:
    """Install the packages, without dependencies, into the folder named after `--`, to be put on PYTHONPATH of another machine."""
    target = Path(only_argument(session, "the folder to fill")).resolve()
    install(session, "pip", "hatchling")
    # --upgrade replaces what an earlier bundle left there, and nothing else in the folder.
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--upgrade", "--target", str(target))
    session.run("python", "-m", "pip", "install", *options, *folders(*PACKAGES))
    session.log(f"there: PYTHONPATH={target.name} python -m pytest packages tests -m gpu")


@nox.session(venv_backend="none")
def gpu(session: nox.Session) -> None:
    """Run the GPU tests with this very Python and the folder that `bundle` filled, named after `--`; no CUDA device is a failure."""
    target = Path(only_argument(session, "the folder that nox -s bundle filled")).resolve()
    env = {"PYTHONPATH": str(target)}
    session.run(sys.executable, "-c", "import torch; torch.cuda.current_device()", env=env)
    session.run(sys.executable, "-m", "pytest", "packages", "tests", "-m", "gpu", env=env)


def asking_for_modules() -> list[str]:
    """Tests that skip where a package is alone: files that ask for modules, and folders whose fixtures do."""
    asking = [path for path in Path("packages").glob("*/tests/**/*.py") if "importorskip" in path.read_text(encoding="utf-8")]
    return sorted({str(path if path.name.startswith("test_") else path.parent) for path in asking})


def folder(package: str) -> str:
    """The folder of a package, as installers want it."""
    return f"./packages/{PREFIX}{package}"


def folders(*packages: str) -> list[str]:
    """The folders of several packages."""
    return [folder(package) for package in packages]


def editable(*packages: str) -> list[str]:
    """Arguments that install `packages` from their folders, in place."""
    return [argument for package in packages for argument in ("-e", folder(package))]


def only_argument(session: nox.Session, meaning: str) -> str:
    """The one argument after `--`; a session without it ends here."""
    if len(session.posargs) != 1:
        session.error(f"nox -s {session.name} -- FOLDER takes {meaning}, got {len(session.posargs)} arguments")
    return session.posargs[0]


def run_pytest(session: nox.Session, *arguments: str, env: dict[str, str] | None = None) -> None:
    """Run pytest in two processes; arguments after `--` come last, so they win."""
    session.run("pytest", "-n", "2", *arguments, *session.posargs, env={**ONE_THREAD, **(env or {})})


def with_another_torch(session: nox.Session, *torch: str) -> None:
    """Test what depends most on torch, with the one that these arguments of the installer get."""
    install(session, *TEST_TOOLS, "numpy", *editable("core", "cfc"))
    install(session, *torch, constraints=())
    run_pytest(session, "packages/pararnn-core/tests", "packages/pararnn-cfc/tests", "-m", "not gpu and not integration")


def install(session: nox.Session, *arguments: str, constraints: tuple[str, ...] = ("-c", CONSTRAINTS)) -> None:
    """Install under the constraints, from where this machine has its packages."""
    sources = ["--extra-index-url", index] if (index := torch_index()) else []
    if session.venv_backend != "uv":
        session.install(*constraints, *sources, *arguments, env={"PIP_BUILD_CONSTRAINT": CONSTRAINTS})
        return
    if index:
        # uv would take every package that the index happens to mirror from there; pip, and so the constraints, mean the best of all indexes.
        sources += ["--index-strategy", "unsafe-best-match"]
    session.install(*constraints, "-b", CONSTRAINTS, *sources, *arguments, env=uv_environment())


@functools.cache
def torch_index() -> str:
    """The extra index that has torch without CUDA, or an empty string where none is needed or none can be reached."""
    chosen = os.environ.get("PARARNN_TORCH_INDEX")
    if chosen is not None:
        return chosen
    if sys.platform != "linux" or pip_setting("find-links"):
        return ""
    try:
        with urllib.request.urlopen(f"{CPU_INDEX}/torch/", timeout=5):
            return CPU_INDEX
    except OSError as error:
        print(f"{CPU_INDEX} cannot be reached ({error}); torch comes from PyPI, with CUDA")
        return ""


def uv_environment() -> dict[str, str]:
    """What pip is told on this machine, in uv's words; what uv is told already stays."""
    translated = {
        "UV_FIND_LINKS": ",".join(pip_setting("find-links")),
        "UV_DEFAULT_INDEX": "".join(pip_setting("index-url")[-1:]),
        "SSL_CERT_FILE": "".join(pip_setting("cert")[-1:]),
    }
    return {name: value for name, value in translated.items() if value and name not in os.environ}


def pip_setting(name: str) -> list[str]:
    """The values of one of pip's settings, those of the environment after those of the configuration files."""
    values = [value for key, value in pip_settings() if key.rpartition(".")[2] == name]
    return list(dict.fromkeys(word for value in values for word in value.split()))


@functools.cache
def pip_settings() -> tuple[tuple[str, str], ...]:
    """All of pip's settings as pairs such as `("global.index-url", ...)`; none where nox runs without pip."""
    listing = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
    pairs = (line.partition("=") for line in listing.stdout.splitlines() if "=" in line)
    return tuple((key, str(ast.literal_eval(value))) for key, _, value in pairs)
