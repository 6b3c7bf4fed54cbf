"""The matrix product of spaCy's networks by numpy's BLAS."""

from typing import Any

import numpy as np
import numpy.typing as npt
from thinc.backends.numpy_ops import NumpyOps

Matrix = npt.NDArray[np.float32]


class BlasOps(NumpyOps):  # type: ignore[misc]  # thinc has no types
    """thinc's operations on numpy arrays, with another matrix product.

    thinc multiplies by its own copy of BLIS. The OpenBLAS in numpy takes two thirds of its time with AVX-512.
    """

    name = "numpy"

    def gemm(
        self, x: Matrix, y: Matrix, out: Matrix | None = None, trans1: bool = False, trans2: bool = False
    ) -> Matrix:
        """Return ``x @ y``, each transposed if asked, in ``out`` if it is given."""
        left: Any = x.T if trans1 else x
        right: Any = y.T if trans2 else y
        product: Matrix = np.matmul(left, right, out=out)
        return product
