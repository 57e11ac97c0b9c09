"""Object code of the CPU backend on disk, and the names under which it is found."""

from __future__ import annotations

from sdpakit.backends.diskcache import DiskCache

OBJECT = "o"
"""Ending of an entry with object code."""

NAME = "name"
"""Ending of an entry with the key of one with object code."""

CACHE = DiskCache("cpu", magic=b"sdpakit-object-2\n", endings=(OBJECT, NAME))
