"""How Sphinx builds these pages: `sphinx-build -W -b html docs docs/_build/html`."""

from importlib.metadata import version as version_of

project = "pararnn"
author = "The pararnn authors"
copyright = "The pararnn authors"
version = release = version_of("pararnn-core")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "benchmarks/results"]
html_theme = "furo"
html_title = "pararnn"
html_static_path = ["_static"]

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
# Docstrings put code between single backticks, as Markdown does.
default_role = "code"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_numpy_docstring = False
# Attributes of a frozen record are the arguments that make it; only that style lets one line speak of several.
napoleon_custom_sections = [("Attributes", "params_style")]
