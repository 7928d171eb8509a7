"""An extension of Griffe that shows all examples of docstrings as code.

Griffe finds examples only in the section Examples. Short docstrings of the package have them right
after the text, so this adds the heading.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_HEADING = re.compile(r"^Examples\n-{3,}$", re.MULTILINE)
_FIRST_EXAMPLE = re.compile(r"^(?=>>> )", re.MULTILINE)


class HeadedExamples(griffe.Extension):
    """Adds the heading of the section Examples to docstrings that lack it."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        docstring = obj.docstring
        if docstring is not None and not _HEADING.search(docstring.value):
            docstring.value = _FIRST_EXAMPLE.sub("Examples\n--------\n", docstring.value, count=1)
