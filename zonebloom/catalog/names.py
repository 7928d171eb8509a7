"""Recognise the names of the folders and files of an index.

A vacuum deletes only files and folders with such names, in the folders where an index has them.
"""

from __future__ import annotations

import re

from zonebloom.catalog.model import GLOBAL_FILTER_FILE, KEY_RANGES_FILE, PAGE_MAP_FILE

SEGMENTS = "segments"
VERSIONS = "versions"

# A random prefix for each build, then the numbers of tasks, indices and attempts, or a purpose.
_SEGMENT_NAME = re.compile(r"[0-9a-f]{16}(?:-(?:all|keys|pages|[0-9]+|[0-9a-f]{8}))+")
# Each kind of index names its own file.
_SEGMENT_FILE_NAME = re.compile(r"[a-z]+\.(?:arrow|buckets|sbbf)")
# Documents, listings of fragments, and drafts of both.
_VERSION_FILE_NAME = re.compile(r"[0-9]{20}\.json|[0-9]{20}-[0-9a-f]{16}\.arrow|\.[0-9a-f]{32}")


def is_segment_name(name: str) -> bool:
    return _SEGMENT_NAME.fullmatch(name) is not None


def is_segment_file_name(name: str) -> bool:
    return _SEGMENT_FILE_NAME.fullmatch(name) is not None


def is_table_file_name(name: str) -> bool:
    """Return whether the table of an index may have a name for its file."""
    is_other_file = name in (KEY_RANGES_FILE, GLOBAL_FILTER_FILE, PAGE_MAP_FILE)
    return is_segment_file_name(name) and not is_other_file


def is_version_file_name(name: str) -> bool:
    return _VERSION_FILE_NAME.fullmatch(name) is not None
