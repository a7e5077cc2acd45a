"""Settings of the documentation site: `make docs` builds it into build/docs."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import generate  # noqa: E402

import autotune  # noqa: E402

project = "autotune"
author = "the autotune project"
version = release = autotune.__version__
html_title = f"autotune {release}"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "sphinx_design",
]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
smartquotes = False
html_show_sphinx = False
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
pygments_style = "friendly"
pygments_dark_style = "monokai"


def setup(app):
    """Write what is made of the code; show names as code, and links out of the site as paths."""
    generate.write_all(HERE / "generated")
    app.connect("autodoc-process-docstring", generate.plain_names)
    app.connect("autodoc-process-signature", generate.signatures)
    app.connect("source-read", generate.outside)
