"""One process, or many under `torchrun`: who this one is, and what all of them share.

A plain command is one process. The batch of an update is the batch of all processes together,
so what is learned does not depend on how many there are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class Group:
    """rank      which of the processes this is
    size      how many there are
    device    where this one computes
    """

    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is the one that writes."""
        return self.rank == 0

    def sum(self, t: Tensor) -> Tensor:
        if self.size > 1:
            dist.all_reduce(t)
        return t

    def most(self, number: int) -> int:
        """The largest that any process has."""
        if self.size == 1:
            return number
        t = torch.tensor(number, device=self.device)
        dist.all_reduce(t, dist.ReduceOp.MAX)
        return int(t)

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """The first process goes ahead, the others follow: they find what it has made."""
        if not self.first:
            self.wait()
        yield
        if self.first:
            self.wait()

    def shared(self, model: nn.Module) -> nn.Module:
        """The model to call while training: its gradients are those of all processes."""
        if self.size == 1:
            return model
        devices = None if self.device.type == "cpu" else [self.device]
        return nn.parallel.DistributedDataParallel(model, device_ids=devices)

    def together(self, forward: nn.Module, *, last: bool) -> AbstractContextManager[object]:
        """Gradients are shared once an update, with the last part of the batch."""
        if last or not isinstance(forward, nn.parallel.DistributedDataParallel):
            return nullcontext()
        return forward.no_sync()


@contextmanager
def joined(device: str | None) -> Iterator[Group]:
    """This process's place among those that `torchrun` has started; alone without it."""
    size, local = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
    where = place(device, local)
    if size == 1:
        yield Group(0, 1, where)
        return
    if where.type == "cuda":
        torch.cuda.set_device(where)
    dist.init_process_group("nccl" if where.type == "cuda" else "gloo")
    try:
        yield Group(dist.get_rank(), size, where)
        # A process that leaves early takes the others' connections with it.
        dist.barrier()
    finally:
        dist.destroy_process_group()


def place(device: str | None, local: int = 0) -> torch.device:
    """The device that was asked for; else a GPU if there is one."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        where = torch.device(device)
    except RuntimeError:
        raise ValueError(f'device="{device}" is none; try cpu, or cuda') from None
    if where.type == "cuda" and where.index is None:
        where = torch.device("cuda", local)
    try:
        works = where.type != "meta" and torch.empty(0, device=where) is not None
    except (RuntimeError, AssertionError):  # no such device here, or PyTorch was built without it
        works = False
    if not works:
        finds = "finds no GPU" if where.type == "cuda" else "cannot compute on it"
        raise ValueError(f'device="{device}", but PyTorch {finds} here: try cpu')
    return where
