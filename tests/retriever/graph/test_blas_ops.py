"""The matrix product of spaCy's networks, beside thinc's own."""

import numpy as np
import pytest
from thinc.backends.numpy_ops import NumpyOps

from retriever.graph.extractors.phrases import BlasOps, Phrases


@pytest.mark.parametrize("trans1", [False, True])
@pytest.mark.parametrize("trans2", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_products_equal_those_of_thinc(trans1, trans2, given):
    random = np.random.default_rng(0)
    x = random.normal(size=(7, 12) if trans1 else (12, 7)).astype(np.float32)
    y = random.normal(size=(5, 7) if trans2 else (7, 5)).astype(np.float32)
    out = np.full((12, 5), np.nan, np.float32) if given else None
    product = BlasOps().gemm(x, y, out=out, trans1=trans1, trans2=trans2)
    np.testing.assert_allclose(product, NumpyOps().gemm(x, y, trans1=trans1, trans2=trans2), rtol=1e-5, atol=1e-5)
    assert out is None or out is product


def test_spacy_uses_them():
    pipeline = Phrases()._nlp
    assert isinstance(pipeline.get_pipe("tok2vec").model.ops, BlasOps)
