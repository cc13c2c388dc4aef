"""Element types: names of the library, numpy's and ml_dtypes' types."""

from __future__ import annotations

from typing import Any

import numpy as np

_ML = {"bf16": "bfloat16", "f8_e4m3": "float8_e4m3fn", "f8_e5m2": "float8_e5m2", "f8_e8m0": "float8_e8m0fnu"}
NUMPY = {"bool": "bool", "u8": "u1", "i8": "i1", "u16": "u2", "i16": "i2", "u32": "u4", "i32": "i4", "u64": "u8", "i64": "i8",
          "f16": "f2", "f32": "f4", "f64": "f8", "c64": "c8", "c128": "c16"}
TORCH = {"bool": "bool", "u8": "uint8", "i8": "int8", "u16": "uint16", "i16": "int16", "u32": "uint32", "i32": "int32", "u64": "uint64",
         "i64": "int64", "f8_e4m3": "float8_e4m3fn", "f8_e5m2": "float8_e5m2", "f8_e8m0": "float8_e8m0fnu", "f16": "float16", "bf16": "bfloat16",
         "f32": "float32", "f64": "float64", "c64": "complex64", "c128": "complex128"}


def numpy_dtype(name: str, bits: bool = False) -> Any:
    """numpy's dtype of an element type of the library; where numpy has none ml_dtypes', or unsigned integers of its bits."""
    if name in NUMPY:
        return np.dtype(NUMPY[name])
    if bits:
        return np.dtype("u2" if name == "bf16" else "u1")
    try:
        import ml_dtypes
    except ImportError as missing:
        raise ImportError(f"numpy has no {name}: install ml_dtypes, or take .torch()") from missing
    return np.dtype(getattr(ml_dtypes, _ML[name]))
