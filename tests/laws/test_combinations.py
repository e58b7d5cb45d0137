"""What combines with what: position × mask × cache × kernel × dtype. `make docs` writes the outcome as a table.

Each cell runs a small decoder on padded rows and compares its real tokens with the float64 reference, whole.
"""

import itertools

import pytest
import torch

from heedful.attention.kernel import KERNELS
from tests.laws import catalog
from tests.laws.test_caches import facts, laid_out, stepped, texts

# How far a decoder of two layers may be off, as a share of the largest logit.
TOLERANCE = {"float64": 1e-10, "float32": 1e-5, "bfloat16": 6e-2, "float16": 8e-3}
CACHES = ("none", *catalog.CACHES)


@pytest.mark.parametrize(
    ("position", "mask", "cache"), list(itertools.product(catalog.POSITIONS, catalog.MASKS, CACHES))
)
def test_combination(position: str, mask: str, cache: str, record_property: object) -> None:
    pattern = catalog.MASKS[mask]
    ids, valid = laid_out(texts(), "left")
    truth_model = catalog.decoder(position, pattern, "reference").double()
    with torch.no_grad():
        truth = truth_model(ids, valid=valid, tables=facts(ids))[valid]
    if cache != "none" and pattern.looks_ahead:
        with pytest.raises(ValueError, match="later"):
            truth_model(ids, cache=catalog.CACHES[cache](), tables=facts(ids))
        record_property("combination", (position, mask, cache, "refused"))  # type: ignore[operator]
        return
    worst = {}
    for kernel, (name, dtype) in itertools.product(KERNELS, catalog.DTYPES.items()):
        model = catalog.decoder(position, pattern, kernel)
        model.load_state_dict(truth_model.state_dict())
        model.to(dtype)
        with torch.no_grad():
            if cache == "none":
                y = model(ids, valid=valid, tables=facts(ids))
            else:
                y = stepped(model, ids, catalog.CACHES[cache](), [4, 5, 8], valid=valid)
        error = ((y[valid].double() - truth).abs().max() / truth.abs().max()).item()
        worst[f"{kernel}, {name}"] = error
        assert error <= TOLERANCE[name], (kernel, name, error)
    record_property("combination", (position, mask, cache, worst))  # type: ignore[operator]
