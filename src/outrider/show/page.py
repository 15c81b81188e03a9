"""An HTML page that needs nothing else: no font, no network. Its CSS and JS lie in this folder."""

from html import escape
from importlib.resources import files

from outrider.show.palette import css_variables

__all__ = ["html_page", "read_asset"]


def read_asset(name: str) -> str:
    """Return a CSS or JS file of this folder."""
    return files("outrider.torch.inspect").joinpath(name).read_text(encoding="utf-8")


def html_page(title: str, body: str, *, style: str) -> str:
    """Return a whole page; `style` names the CSS file it needs beside the common one."""
    css = "".join((css_variables(), read_asset("page.css"), read_asset(style)))
    return f"""<!DOCTYPE html>
<html>
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>
{css}</style>
</head>
<body>
{body}
</body>
</html>
"""
