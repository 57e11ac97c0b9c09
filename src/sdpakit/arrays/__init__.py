"""Arrays of any library: zero-copy views of what came, results in the caller's namespace.

Everything below works on NumPy views. No array is ever copied, converted or moved to another device
in silence: what cannot be viewed is refused, with the call that would convert it (ERR-1).
"""

from __future__ import annotations

from sdpakit.arrays.exporting import export, new_array, new_zeros
from sdpakit.arrays.importing import Operand, import_array
from sdpakit.arrays.out import check_distinct, check_out
from sdpakit.arrays.storage import numpy_dtype

__all__ = [
    "Operand",
    "check_distinct",
    "check_out",
    "export",
    "import_array",
    "new_array",
    "new_zeros",
    "numpy_dtype",
]
