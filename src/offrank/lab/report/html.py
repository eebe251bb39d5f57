"""Text, tables and data as HTML, escaped so that no name in a file can inject markup."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from offrank.core.errors import FileFormatError
from offrank.lab.studies.tables import Table

Head = Sequence[tuple[str, Sequence[str]]]  # groups of columns: a title, or none, and the columns under it


def text(value: object) -> str:
    return escape(str(value), quote=True)


def table(content: Table, caption: str, groups: Head | None = None) -> str:
    """A table with real headers, in a box that scrolls where the screen is narrow.

    Args:
        content: its cells; the first of a row names the row.
        caption: what it shows.
        groups: titles over neighbouring columns, together as many as the table has.
    """
    lines = [f"<caption>{text(caption)}</caption>", "<thead>"]
    if groups:
        cells = []
        for title, columns in groups:
            scope = ' scope="colgroup"' if title else ""
            tag = "th" if title else "td"
            cells.append(f'<{tag} colspan="{len(columns)}"{scope}>{text(title)}</{tag}>')
        lines.append(f'<tr class="groups">{"".join(cells)}</tr>')
    lines.append("<tr>" + "".join(f'<th scope="col">{text(name)}</th>' for name in content.head) + "</tr></thead>")
    lines.append("<tbody>")
    for first, *rest in content.rows:
        cells = [f'<th scope="row">{text(first)}</th>', *(f"<td>{_cell(cell)}</td>" for cell in rest)]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    lines.append("</tbody>")
    inside = "\n".join(lines)
    label = text(caption)
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table>\n{inside}\n</table></div>'


def _cell(words: str) -> str:
    """A cell whose intervals are not broken across lines."""
    return re.sub(r"\([^()]*\)", r'<span class="whole">\g<0></span>', text(words))


def data(value: Mapping[str, Any]) -> str:
    """JSON for a script element: characters that could end the element are escaped.

    Raises:
        FileFormatError: it holds a number that is not finite.
    """
    try:
        plain = json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError as error:
        raise FileFormatError("a row holds a number that is not finite (NaN or Infinity)") from error
    for character in "<>&\u2028\u2029":
        plain = plain.replace(character, f"\\u{ord(character):04x}")
    return plain
