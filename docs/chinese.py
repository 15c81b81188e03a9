"""The Chinese site: every page has a Chinese name in the menu, and says so if it is in English."""

import re
from typing import Any

NOTE = "本页尚无中文版，以下为英文原文。\n{ .only-english }"
HEADING = re.compile(r"^# (.+)$", re.MULTILINE)


def on_nav(nav: Any, config: Any, **_: Any) -> Any:
    """Name pages without a translation by their heading, for `nav_translations` to translate."""
    for page in nav.pages:
        if _english_only(page, config) and page.title is None:
            page.title = HEADING.findall(page.file.content_string)[0]
    return nav


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Say below the heading that a page is in English; searches find it on the English site."""
    if not _english_only(page, config):
        return markdown
    page.meta["search"] = {"exclude": True}
    return HEADING.sub(lambda found: f"{found[0]}\n\n{NOTE}", markdown, count=1)


def _english_only(page: Any, config: Any) -> bool:
    """Whether this is a page of the Chinese site that was not translated."""
    return config.theme["language"] == "zh" and not page.file.src_uri.endswith(".zh.md")
