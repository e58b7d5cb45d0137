"""Models on disk: `save` writes heedful's own folder, `load` reads it, or a Hugging Face folder.

    config.json           the recipe and its arguments, with a format number
    model.safetensors     weights by path, a shared tensor once; in shards with an index where large
    tokenizer.json        if the model has a tokenizer
    generation.json       special ids, if it has any
    README.md             a card
    manifest.json         sha256 of each file, written last

A folder never names code: it names a recipe of heedful's, or of yours, which you hand to `load`.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import itertools
import json
import os
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from heedful import disk
from heedful.convert import FAMILIES
from heedful.convert.table import complain
from heedful.model import Shell
from heedful.models.recipe import RECIPES, YOURS
from heedful.trace import Around, paths

SHARD = 4 * 2**30  # bytes in one weights file at most

Places = dict[str, list[tuple[nn.Module, str]]]


def load(
    folder: str | os.PathLike[str],
    *,
    recipe: Callable[..., Shell] | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Shell:
    """A model from a folder, heedful's own or Hugging Face's, or a run's; ready to use (in eval mode).

    recipe   your own recipe, where the folder was saved from it
    dtype    the file's, if not given
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; a model is a folder with config.json and its weights")
    folder = _of_run(folder)
    # The manifest first: it tells damage from a folder of another kind.
    listed = disk.manifest(folder)
    disk.check(folder, listed)
    config = disk.json_object(folder / "config.json")
    if "format" in config:
        model, tensors = _own(folder, config, listed, recipe)
    else:
        model, tensors = _theirs(folder, config)
    for name, places in tensors_by_name(model).items():
        # A copy: what safetensors gives is the file itself, mapped, and follows it.
        parameter = nn.Parameter(tensors.pop(name).to(device=device, dtype=dtype, copy=True))
        for module, leaf in places:
            module._parameters[leaf] = parameter
    model.to(device=device)
    model.tokenizer = _tokenizer(folder / "tokenizer.json")
    return model.eval()


def _of_run(folder: Path) -> Path:
    """A run's best checkpoint, or its latest; any other folder as it is."""
    if (folder / "config.json").exists():
        return folder
    return next((folder / name for name in ("best", "latest") if (folder / name).exists()), folder)


def save(model: Shell, folder: str | os.PathLike[str]) -> None:
    """Write a model's folder, whole or not at all."""
    disk.write(Path(folder), contents(model))


def contents(model: Shell) -> list[disk.Part]:
    """What a model's folder holds, to be written; raises before anything is."""
    texts = [disk.text(name, content) for name, content in _texts(model).items()]
    return [*texts, functools.partial(_write_weights, model)]


def _texts(model: Shell) -> dict[str, str]:
    """Everything but the weights, as text; raises before anything is written."""
    if not isinstance(model, Shell):
        raise ValueError(
            f"save takes a heedful model, not a {type(model).__name__}; of a compiled one give model._orig_mod"
        )
    if model.recipe is None:
        raise ValueError(
            "this model was not built by a recipe, so nothing says how to build it again: "
            "mark your function with @heedful.recipe"
        )
    if any(parameter.device.type == "meta" for parameter in model.parameters()):
        raise ValueError("this model is on the meta device, without values: there is nothing to save")
    name, arguments = model.recipe
    try:
        config = json.dumps({"format": disk.FORMAT, "recipe": name, "arguments": arguments}, indent=2)
    except TypeError as error:
        raise ValueError(
            f"the arguments of {name} must be plain values (numbers, strings, lists, dicts): {error}"
        ) from None
    # As they come back from the file: JSON knows no tuples, and no numbers as keys.
    _check_unchanged(model, name, json.loads(config)["arguments"])
    files = {"config.json": config + "\n", "README.md": _card(model, name, arguments)}
    if model.generation:
        files["generation.json"] = json.dumps(model.generation, indent=2) + "\n"
    if model.tokenizer is not None:
        files["tokenizer.json"] = model.tokenizer.to_str(pretty=True)  # type: ignore[attr-defined]
    return files


def _check_unchanged(model: Shell, name: str, arguments: Mapping[str, Any]) -> None:
    """The folder holds a recipe's name and weights, so the model must be what the recipe builds."""
    build = RECIPES.get(name) or YOURS.get(name)
    if build is None:
        raise ValueError(f'no recipe "{name}" is known any more: import the module that defines it')
    with torch.device("meta"):
        fresh = build(**arguments)
    here, there = _described(model), _described(fresh)
    for is_here, is_there in itertools.zip_longest(here, there):
        if is_here != is_there:
            raise ValueError(
                f'"{(is_here or is_there)["path"]}" is not what {name} builds: {_difference(is_here, is_there)}. '
                "A folder cannot say so: write a recipe that does, mark it with @heedful.recipe, and save that"
            )


# What training changes by hand, and nothing that a model is built of.
_PASSING = {"training", "p", "dropout", "kernel", "recipe", "generation", "tokenizer"}


def _described(model: nn.Module) -> list[dict[str, object]]:
    """Every part in order: its path, class and settings, its tensors' shapes, and where shared ones stand first."""
    first = {id(one_tensor(places)): name for name, places in tensors_by_name(model).items()}
    found: list[dict[str, object]] = []
    for path, part in paths(model):
        facts: dict[str, object] = {"path": path, "class": f"{type(part).__module__}.{type(part).__qualname__}"}
        for name, value in vars(part).items():
            if not name.startswith("_") and name not in _PASSING and not isinstance(value, nn.Module):
                facts[name] = _plain(value)
        for name, tensor in part._parameters.items():
            facts[name] = None if tensor is None else (tuple(tensor.shape), first[id(tensor)])
        for name, buffer in part._buffers.items():
            facts[name] = None if buffer is None else _plain(buffer)
        found.append(facts)
    return found


def _plain(value: object) -> object:
    """A setting as something that compares: functions by name, tensors by shape (frequencies also by value)."""
    if isinstance(value, functools.partial):
        return _plain(value.func), value.args, value.keywords
    if isinstance(value, types.FunctionType):
        return value.__module__, value.__qualname__
    if isinstance(value, Tensor):
        values = value.tolist() if value.dtype == torch.float64 and not value.is_meta else None
        return tuple(value.shape), values
    return value


def _difference(here: Mapping[str, object] | None, there: Mapping[str, object] | None) -> str:
    if here is None or there is None:
        return "it is gone" if here is None else f"there is a {here['class']}"
    name = next(name for name in {**here, **there} if here.get(name) != there.get(name))
    return f"{name} is {here.get(name)!r} here, {there.get(name)!r} there"


def _card(model: Shell, name: str, arguments: Mapping[str, object]) -> str:
    count = sum(p.numel() for p in model.parameters())
    given = "\n".join(f"- `{key}`: {json.dumps(value)}" for key, value in arguments.items())
    return (
        f"# {name}\n\nA model of heedful's recipe `{name}` with {count:,} parameters.\n\n{given}\n\n"
        '```python\nimport heedful\n\nmodel = heedful.load("this folder")\n```\n'
    )


def tensors_by_name(model: nn.Module) -> Places:
    """Every tensor that belongs on disk, by its first path, with all the places where it stands."""
    found: Places = {}
    names: dict[int, str] = {}
    for path, module in paths(model):
        kept = {n: b for n, b in module._buffers.items() if n not in module._non_persistent_buffers_set}
        if any(b is not None for b in kept.values()):
            raise ValueError(
                f"{path} has buffers that would have to be saved ({', '.join(kept)}): "
                "register them with persistent=False"
            )
        for leaf, tensor in module._parameters.items():
            if tensor is None:
                continue
            between = "" if not path else "_" if isinstance(module, Around) else "."
            name = names.setdefault(id(tensor), path + between + leaf)
            if (module, leaf) not in found.setdefault(name, []):
                found[name].append((module, leaf))
    return found


def one_tensor(places: list[tuple[nn.Module, str]]) -> Tensor:
    module, leaf = places[0]
    tensor = module._parameters[leaf]
    assert tensor is not None
    return tensor


def _write_weights(model: nn.Module, folder: Path) -> None:
    tensors: dict[str, Tensor] = {}
    for name, places in tensors_by_name(model).items():
        tensors[name] = one_tensor(places).detach().contiguous()
    shards: list[dict[str, Tensor]] = [{}]
    for name, tensor in tensors.items():
        if shards[-1] and _bytes(shards[-1].values()) + _bytes([tensor]) > SHARD:
            shards.append({})
        shards[-1][name] = tensor
    if len(shards) == 1:
        save_file(shards[0], folder / "model.safetensors", metadata={"format": "pt"})
        return
    files = {f"model-{n + 1:05d}-of-{len(shards):05d}.safetensors": shard for n, shard in enumerate(shards)}
    for file, shard in files.items():
        save_file(shard, folder / file, metadata={"format": "pt"})
    index = {
        "metadata": {"total_size": _bytes(tensors.values())},
        "weight_map": {name: file for file, shard in files.items() for name in shard},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _bytes(tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _own(
    folder: Path, config: Mapping[str, Any], listed: Mapping[str, str], recipe: Callable[..., Shell] | None
) -> tuple[Shell, dict[str, Tensor]]:
    if config["format"] != disk.FORMAT:
        raise ValueError(
            f"{folder}: its format is {config['format']}, this heedful reads {disk.FORMAT}: a newer heedful may read it"
        )
    if not listed:
        raise ValueError(f"{folder}: its manifest.json is missing or damaged, so nothing says whether it is whole")
    name, arguments = config.get("recipe"), config.get("arguments", {})
    build = recipe if recipe is not None else RECIPES.get(str(name))
    if build is None:
        near = difflib.get_close_matches(str(name), RECIPES, n=1)
        raise ValueError(
            f'{folder}: no recipe "{name}" here; there are {", ".join(RECIPES)}'
            + (f'; did you mean "{near[0]}"?' if near else "")
            + ". If it is your own, hand it over: load(folder, recipe=...)"
        )
    model = _build(build, arguments, folder)
    if (folder / "generation.json").exists():
        model.generation = disk.json_object(folder / "generation.json")
    shapes = _shapes(model)
    readers = _weights(folder, listed)
    tensors = {key: read() for key, read in readers.items() if key in shapes}
    complain(
        [key for key in shapes if key not in readers],
        [key for key in readers if key not in shapes],
        [
            f"{key} is {shapes[key]} here, {tuple(t.shape)} there"
            for key, t in tensors.items()
            if tuple(t.shape) != shapes[key]
        ],
    )
    return model, tensors


def _theirs(folder: Path, config: Mapping[str, Any]) -> tuple[Shell, dict[str, Tensor]]:
    family = FAMILIES.get(str(config.get("model_type")))
    if family is None:
        raise ValueError(
            f"{folder}: model_type={config.get('model_type')!r} is not read here; these are: {', '.join(FAMILIES)}"
        )
    model = _build(RECIPES[family.recipe], family.build_arguments(config), folder)
    special = dict(config)
    with contextlib.suppress(FileNotFoundError):
        special.update(disk.json_object(folder / "generation_config.json", missing_ok=True))
    ids = {"begin": "bos_token_id", "end": "eos_token_id", "pad": "pad_token_id", "start": "decoder_start_token_id"}
    model.generation = {ours: special[theirs] for ours, theirs in ids.items() if special.get(theirs) is not None}
    return model, family.read(_weights(folder), _shapes(model))


def _build(build: Callable[..., Shell], arguments: Mapping[str, Any], folder: Path) -> Shell:
    """The model without storage: its tensors come from the file."""
    try:
        with torch.device("meta"):
            model = build(**arguments)
    except (TypeError, RuntimeError) as error:
        raise ValueError(f"{folder}: config.json does not fit its recipe: {error}") from None
    if any(buffer.is_meta for buffer in model.buffers()):
        # Tables that a recipe of one's own computes, and that no file holds.
        model = build(**arguments)
    if model.recipe is None:
        model.recipe = (build.__name__, dict(arguments))
    return model


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(one_tensor(places).shape) for name, places in tensors_by_name(model).items()}


def _weights(folder: Path, listed: Mapping[str, str] | None = None) -> dict[str, Callable[[], Tensor]]:
    """Functions that read a tensor each, from one file or from shards; from `listed` files alone, if given."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        weight_map = disk.json_object(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
            raise ValueError(f"{index} has no weight_map, which says in which file each tensor is")
        files = sorted(set(weight_map.values()))
    elif (folder / "model.safetensors").exists():
        files = ["model.safetensors"]
    else:
        raise ValueError(f"{folder} has no model.safetensors: nothing to load the weights from")
    readers: dict[str, Callable[[], Tensor]] = {}
    for file in files:
        if Path(file).name != file or not (folder / file).is_file():
            raise ValueError(f"{folder}: its {index.name} names {file!r}, which is not a file in it")
        if listed is not None and file not in listed:
            raise ValueError(f"{folder}: {file!r} is not in its manifest, so somebody else put it there")
        try:
            opened = safe_open(folder / file, framework="pt")
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{folder / file} is damaged or not a safetensors file: {error}") from None
        for name in opened.keys():  # noqa: SIM118  it is no dict
            readers[name] = lambda opened=opened, name=name: opened.get_tensor(name)  # type: ignore[misc]
    return readers


def _tokenizer(path: Path) -> object | None:
    if not path.exists():
        return None
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no narrower type
        raise ValueError(f"{path} is not a tokenizer: {error}") from None
    # Text that a user types never becomes a special token.
    tokenizer.encode_special_tokens = True
    return tokenizer
