"""How Sphinx makes the documentation; see `make docs`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "passes")]

from remat_compiler.version import __version__  # noqa: E402 - found by the line above

project = "remat"
author = "remat authors"
copyright = "remat authors"  # noqa: A001 - the name that Sphinx reads
version = release = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "sphinx_copybutton"]
exclude_patterns = ["_build", "**.ipynb_checkpoints"]
default_role = "code"
# Blocks that name no language are commands, what they print, and tables in docstrings.
highlight_language = "none"
nitpicky = False

# Notebooks are stored with their outputs, and run by the tests: a build needs neither torch's compiler nor minutes.
nb_execution_mode = "off"
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_mock_imports = ["transformers", "lightning", "pytorch_lightning"]
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # one list of attributes for each class, not a heading for each attribute
copybutton_prompt_text = "$ "
copybutton_exclude = ".linenos, .gp, .go"

html_theme = "pydata_sphinx_theme"
html_title = "remat"
html_static_path = ["_static"]
html_css_files = ["remat.css"]
html_extra_path = ["llms.txt"]
html_show_sourcelink = False
html_theme_options = {
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": True,
    "navigation_with_keys": False,
    "navbar_center": [],  # all pages stand in the sidebar
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version"],
}
templates_path = ["_templates"]
html_sidebars = {"**": ["pages"]}

_SECTION = re.compile(r"\s*(Args|Attributes|Raises|Returns|Yields|Note|Example)s?:$")


def show_drawings(lines: list[str]) -> list[str]:
    """Docstring lines with `::` before each indented block, so that tables and code in it are shown as written."""
    shown: list[str] = []
    for number, line in enumerate(lines):
        above = next((one for one in reversed(shown) if one.strip()), "")
        starts_block = number > 0 and not lines[number - 1].strip() and line.strip() and _depth(line) >= 4
        if starts_block and _depth(above) == 0 and not _SECTION.match(above) and not above.startswith(("-", "*")):
            shown += ["::", ""]
        shown.append(line)
    return shown


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""

    def on_docstring(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
        lines[:] = show_drawings(lines)

    app.connect("autodoc-process-docstring", on_docstring, priority=100)  # before napoleon's 500
