"""How deep lists and objects are nested in a JSON text, without parsing it.

What is written in a kilobyte may be nested a thousand levels deep. Python's parser takes some 950 of them, its
serialisers fewer: such a value can be stored and then not be shown. So the levels are counted before anybody parses.
"""

from __future__ import annotations

from itertools import accumulate

MAX_ASKED = 32  # levels of a request; people and their tools use five
# Of a stored document: a request's, with what is put around it, and those of older data that can be shown.
MAX_KEPT = 200

_STRUCTURE = b'[]{}"'
_REST = bytes(set(range(256)) - set(_STRUCTURE))
_AS_LISTS = bytes.maketrans(b"{}", b"[]")
_STEP = {ord("["): 1, ord("]"): -1}


def is_deeper(text: bytes, levels: int) -> bool:
    """Return whether a JSON text has more levels than these. Of what is no JSON either may be said."""
    opened = text.count(b"[") + text.count(b"{")
    if opened <= levels:
        return False
    unescaped = text.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in text else text
    if unescaped.count(b'"') > 4 * (opened + text.count(b",")):
        return False  # no JSON has so many strings: a name and a text for each member
    brackets = b"".join(unescaped.translate(_AS_LISTS, _REST).split(b'"')[::2])  # those that stand in no string
    rest = brackets
    for _ in range(levels):
        if not rest:
            return False
        rest = rest.replace(b"[]", b"")  # the innermost level of each
    return bool(rest) and max(accumulate(map(_STEP.__getitem__, brackets))) > levels
