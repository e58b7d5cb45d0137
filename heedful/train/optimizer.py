"""Optimizers: AdamW, the paper's Adam, and SGD, with their state by the names of parameters.

    made = optimizer(model, "adamw", decay=0.1)
    norm = clip(model, 1.0)
    for group in made.param_groups:
        group["lr"] = rate(step)
    made.step()

The rate begins at 0: the loop sets it before each step, from a schedule.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from heedful.folder import one_tensor, tensors_by_name
from heedful.known import unknown

# Each with the settings that it has, and what they are where not given: those of the 2017 paper.
# Fused: one kernel for all parameters.
# SGD's fused kernel fails where one parameter's first gradient comes later than another's.
OPTIMIZERS: dict[str, tuple[Callable[..., Optimizer], dict[str, Any]]] = {
    "adamw": (functools.partial(AdamW, fused=True), {"betas": (0.9, 0.98), "epsilon": 1e-9}),
    "adam": (functools.partial(Adam, fused=True), {"betas": (0.9, 0.98), "epsilon": 1e-9}),
    "sgd": (SGD, {"momentum": 0.9}),
}


def optimizer(
    model: nn.Module,
    name: str = "adamw",
    *,
    decay: float,
    betas: tuple[float, float] | None = None,
    epsilon: float | None = None,
    momentum: float | None = None,
) -> Optimizer:
    """The optimizer of a model's trained parameters.

    name      adamw    Loshchilov and Hutter 2019, arXiv:1711.05101
              adam     with the settings of Vaswani et al. 2017: betas 0.9 and 0.98, epsilon 1e-9
              sgd      with momentum
    decay     of weights, in matrices and tables; vectors (biases, norms) never decay.
              AdamW shrinks the weights themselves; the others add it to the gradients
    """
    if name not in OPTIMIZERS:
        raise ValueError(unknown("optimizer", name, OPTIMIZERS))
    make, settings = OPTIMIZERS[name]
    given = {"betas": betas, "epsilon": epsilon, "momentum": momentum}
    for setting, value in given.items():
        if value is not None and setting not in settings:
            raise ValueError(f"{setting}={value}: {name} has none; it has {', '.join(settings)}")
    settings = {setting: value if given[setting] is None else given[setting] for setting, value in settings.items()}
    _check(decay, **settings)
    trained = _trained(model)
    if not trained:
        raise ValueError("nothing in this model is trained: every parameter has requires_grad=False")
    groups = [
        {"params": [(n, p) for n, p in trained.items() if p.dim() >= 2], "weight_decay": decay},
        {"params": [(n, p) for n, p in trained.items() if p.dim() < 2], "weight_decay": 0.0},
    ]
    if "epsilon" in settings:
        settings["eps"] = settings.pop("epsilon")
    return make([group for group in groups if group["params"]], lr=0.0, **settings)


def clip(model: nn.Module, limit: float | None) -> Tensor:
    """‖g‖, over all gradients as one vector; where it is above `limit`, they are scaled down to it, in place.

    The norm is that before clipping. limit=None only measures.
    """
    if limit is None:
        return nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    if not limit > 0:
        raise ValueError(f"limit={limit}: the largest norm is above 0; None does not clip")
    return nn.utils.clip_grad_norm_(list(model.parameters()), limit)


def optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """What the optimizer remembers, as "exp_avg/layers.0.attention.query.weight": the tensors themselves, no copies.

    A parameter that had no gradient so far is there with zeros, which is what it would begin with.
    """
    return {
        f"{kind}/{name}": tensor.detach().contiguous()
        for name, parameter in _known(model, optimizer).items()
        for kind, tensor in _state(optimizer, parameter).items()
    }


def restore(model: nn.Module, optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Let the optimizer remember what `optimizer_tensors` gave. What does not fit exactly is an error."""
    known = _known(model, optimizer)
    expected = optimizer_tensors(model, optimizer)
    problems = [f"{key} is missing" for key in expected if key not in tensors]
    problems += [f"{key} is of no parameter here" for key in tensors if key not in expected]
    for key, here in expected.items():
        there = tensors.get(key, here)
        if (here.shape, here.dtype) != (there.shape, there.dtype):
            problems.append(f"{key} is {_described(here)} here, {_described(there)} there")
    if problems:
        more = [f"and {len(problems) - 10} more"] if len(problems) > 10 else []
        raise ValueError("\n  ".join(["the optimizer's state does not fit the model:", *problems[:10], *more]))
    for name, parameter in known.items():
        optimizer.state[parameter] = {
            kind: tensors[f"{kind}/{name}"].to(tensor.device, copy=True)
            for kind, tensor in _state(optimizer, parameter).items()
        }


def _trained(model: nn.Module) -> dict[str, Tensor]:
    """By the names they have on disk: a shared one once, under its first path."""
    tensors = {name: one_tensor(places) for name, places in tensors_by_name(model).items()}
    return {name: tensor for name, tensor in tensors.items() if tensor.requires_grad}


def _known(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    trained = _trained(model)
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    strangers = [name for name, parameter in trained.items() if id(parameter) not in held]
    if strangers or len(held) != len(trained):
        more = f", such as {strangers[0]}" if strangers else ""
        raise ValueError(
            f"the optimizer holds {len(held)} parameters, the model trains {len(trained)}, and they are not the same"
            f"{more}: make the optimizer after the model is built, moved and frozen"
        )
    return trained


def _state(optimizer: Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    state = {kind: x for kind, x in optimizer.state.get(parameter, {}).items() if x is not None}
    if state:
        return state
    if isinstance(optimizer, SGD):
        return {"momentum_buffer": torch.zeros_like(parameter)} if optimizer.defaults["momentum"] else {}
    moments = {kind: torch.zeros_like(parameter) for kind in ("exp_avg", "exp_avg_sq")}
    return {"step": torch.zeros((), device=parameter.device), **moments}


def _check(
    decay: float,
    betas: tuple[float, float] = (0.0, 0.0),
    epsilon: float = 0.0,
    momentum: float = 0.0,
) -> None:
    if not 0 <= decay < math.inf:
        raise ValueError(f"decay={decay}: 0 for none, or a part of each weight, such as 0.1")
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"betas={betas}: two numbers from 0 to below 1, such as 0.9 and 0.98")
    if not 0 <= epsilon < math.inf:
        raise ValueError(f"epsilon={epsilon}: a small number, such as 1e-8")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum={momentum}: a number from 0 to below 1")


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
