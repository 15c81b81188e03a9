"""The Chinese site: Chinese names in the menu, and a notice on untranslated pages."""

import re
from typing import Any

NOTE = "本页尚无中文版，以下为英文原文。\n{ .only-english }"
HEADING = re.compile(r"^# (.+)$", re.MULTILINE)


def on_nav(nav: Any, config: Any, **_: Any) -> Any:
    """Name untranslated pages by their heading, for `nav_translations` to translate."""
    for page in nav.pages:
        if _english_only(page, config) and page.title is None:
            page.title = HEADING.findall(page.file.content_string)[0]
    return nav


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Add a notice that a page is in English; exclude it from the Chinese search."""
    if not _english_only(page, config):
        return markdown
    page.meta["search"] = {"exclude": True}
    return HEADING.sub(lambda found: f"{found[0]}\n\n{NOTE}", markdown, count=1)


def _english_only(page: Any, config: Any) -> bool:
    """Whether this is an untranslated page of the Chinese site."""
    return config.theme["language"] == "zh" and not page.file.src_uri.endswith(".zh.md")
