# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Reading what dcgmi prints: JSON documents of every generation, text tables, error messages.

Every generation becomes one `Document`; `rules.py` judges it. Nothing here raises for what a text contains.
"""

from __future__ import annotations

import re

from .. import json_documents
from .documents import Document
from .json_reader import FIRST_KEYS, is_root, read_root
from .table import read_table

_RETURN = re.compile(r"Return:\s{0,9}\((-?\d{1,3})\)")


def read(text: str) -> Document:
    """The last document of a text; a later document that is damaged makes the whole incomplete."""
    found = json_documents.find(text, is_root, FIRST_KEYS)
    if found.root is not None and not found.damaged:
        document = read_root(found.root, _return_of)
        if found.torn:
            document.lacks("another process wrote into a line of the document")
        return document
    if found.damaged:
        return Document("unparsable", complete=False, message="the document is cut or damaged")
    return read_table(text) or _from_error(text) or Document("unparsable", complete=False, message="no diagnostic document")


# Texts of dcgmi that carry no return value, and the value they stand for.
_ERROR_TEXTS: tuple[tuple[re.Pattern[str], int], ...] = (
    (re.compile(r"homogen[e]?ous group|group is incompatible|incompatible GPUs", re.I), -23),
    (re.compile(r"already running", re.I), -39),
    (re.compile(r"in use by another|currently in use", re.I), -34),
    (re.compile(r"unable to (?:establish a connection|connect) to|host engine (?:connection )?(?:is )?(?:lost|invalid)", re.I), -21),
    (re.compile(r"requires? root|must be run as root", re.I), -29),
    (re.compile(r"version mismatch", re.I), -12),
)


def _from_error(text: str) -> Document | None:
    """Plain error text instead of a document."""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    for line in lines:
        value = _return_of(line)
        if value is not None:
            return Document("text_error", ret=value, message=line)
    for line in lines:
        for pattern, value in _ERROR_TEXTS:
            if pattern.search(line):
                return Document("text_error", ret=value, message=line)
    for line in lines:
        if line.startswith("Error:"):
            return Document("text_error", message=line)
    return None


def _return_of(text: str) -> int | None:
    match = _RETURN.search(text)
    if match:
        return int(match.group(1))
    return next((value for pattern, value in _ERROR_TEXTS if pattern.search(text)), None) if text.startswith("Error") else None
