"""Nothing exists that the laws do not look at."""

import inspect

from torch import nn

from heedful import mask, position
from heedful.attention.cache import Cache
from heedful.attention.kernel import KERNELS
from heedful.models import RECIPES
from tests.laws import catalog


def _subclasses(cls: type) -> set[type]:
    return {cls}.union(*(_subclasses(c) for c in cls.__subclasses__()))


def test_every_mask_atom_is_in_the_masks_of_the_laws() -> None:
    seen = {type(atom) for m in catalog.MASKS.values() for atom in m.atoms}
    # Joins and complements hold atoms; Lengths is `key(lengths=...)`, which names no table a layer could own.
    joins = {mask.Mask, mask.Not, mask._Joined, mask.And, mask.Or, mask.Lengths}
    ours = {cls for cls in _subclasses(mask.Mask) if cls.__module__ == "heedful.mask"}
    assert ours - joins == seen


def test_every_position_is_in_the_positions_of_the_laws() -> None:
    made = [given for build in catalog.POSITIONS.values() for given in build().values()]
    seen = {type(part) for part in made} | {type(b) for build in catalog.BIASES.values() for b in build(2)}
    public = [getattr(position, name) for name in position.__all__]
    parts = {p for p in public if inspect.isclass(p) and issubclass(p, nn.Module)}
    assert all(any(issubclass(s, part) for s in seen) for part in parts)


def test_every_cache_and_recipe_and_kernel_is_in_the_laws() -> None:
    assert {type(build()) for build in catalog.CACHES.values()} == _subclasses(Cache) - {Cache}
    assert set(catalog.RECIPES) == set(RECIPES)
    assert set(catalog.kernels_for("none")) == set(KERNELS)
