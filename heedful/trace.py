"""See what a model computes, while it computes it.

`note(name, x)` stands in the line that makes a value, and returns the value.
With nobody listening it costs one look at a context variable, and it compiles away.

    with listen(model) as trace:
        model(ids)
    trace["layers.3.attention.weights"]

The same modules run, on the same kernels: there is no second implementation to drift away.
A listener may also *answer* with another tensor, which then takes the place of the one it heard.
So looking, ablating and patching are one mechanism.
"""

import contextlib
import contextvars
import re
import sys
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

_listener: contextvars.ContextVar["Trace | None"] = contextvars.ContextVar("listener", default=None)


def current() -> "Trace | None":
    """Who listens now; nobody inside a compiled graph."""
    return None if torch.compiler.is_compiling() else _listener.get()


def note(name: str, x: Tensor) -> Tensor:
    """Let a listener hear `x` under `name`, and return what it answers: `x`, unless it says otherwise."""
    trace = current()
    return x if trace is None else trace.hear(name, x)


class Around(nn.Module):
    """A module around its `branch`, which paths see through.

    What stands at `attention` is the branch itself; the wrapper's own norm is `attention_norm`.
    """

    branch: nn.Module


def _child_path(parent: nn.Module, path: str, child: str) -> str:
    if isinstance(parent, Around):
        if child == "branch":
            return path
        return f"{path}_{child}" if path else child
    return f"{path}.{child}" if path else child


def paths(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Every module under `module` by its path; a shared one comes once for each place where it stands.

    A wrapper comes before its branch, under the same path.
    """
    yield path, module
    for name, child in module._modules.items():
        if child is not None:
            yield from paths(child, _child_path(module, path, name))


def matches(path: str, pattern: str) -> bool:
    """A whole path or its last names, where * is any one name and ** any number of them.

    `layers.3.attention.weights`, `weights`, `layers.*.attention`, `decoder.**`
    """
    names = re.escape(pattern).replace(r"\*\*", ".*").replace(r"\*", "[^.]*")
    return re.fullmatch(rf"(?:.*\.)?{names}", path) is not None


class Trace:
    """What was heard: `trace[path]` is the last call's value, `trace.all(path)` every call's."""

    def __init__(
        self,
        model: nn.Module,
        only: Sequence[str] | None,
        layers: Sequence[int] | None,
        heads: Sequence[int] | None,
        answer: dict[str, Callable[[Tensor], Tensor]],
    ) -> None:
        self.heads = None if heads is None else list(heads)
        self.values: dict[str, list[Tensor]] = {}
        self._only, self._layers, self._answer = only, layers, answer
        self._model = model
        self._places: dict[tuple[nn.Module, str], dict[nn.Module, list[str]]] = {}
        self._calls: list[_Call] = []
        self._answered: set[str] = set()

    def __getitem__(self, path: str) -> Tensor:
        return self.all(path)[-1]

    def all(self, path: str) -> list[Tensor]:
        if path not in self.values:
            heard = ", ".join(self.values) or "nothing"
            raise KeyError(f'nothing was heard at "{path}"; heard: {heard}')
        return self.values[path]

    def __contains__(self, path: str) -> bool:
        return path in self.values

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def path(self, name: str) -> str:
        here = self._calls[-1].path if self._calls else ""
        return f"{here}.{name}" if here else name

    def wants(self, name: str) -> bool:
        """Whether a value is worth making, when it is made for the listener alone."""
        path = self.path(name)
        return bool(self._calls) and (self._keeps(path) or self._answer_to(path) is not None)

    def answers(self, name: str) -> bool:
        return bool(self._calls) and self._answer_to(self.path(name)) is not None

    def hear(self, name: str, x: Tensor, *, heads: bool = False) -> Tensor:
        """Keep `x`; where `heads` says that axis 1 counts heads, keep those that were asked for."""
        if not self._calls:
            return x  # of a model that nobody listens to
        path = self.path(name)
        if self._keeps(path):
            kept = x[:, self.heads] if heads and self.heads is not None else x
            self.values.setdefault(path, []).append(kept)
        answer = self._answer_to(path)
        if answer is None:
            return x
        before = x.clone() if x.is_inference() else x._version
        answered = answer(x)
        if not (torch.equal(before, x) if isinstance(before, Tensor) else before == x._version):
            raise ValueError(f'the answer at "{path}" changed what it heard in place: return another tensor')
        if not isinstance(answered, Tensor):
            raise ValueError(f'the answer at "{path}" is a {type(answered).__name__}: return a tensor')
        if answered.shape != x.shape or answered.dtype != x.dtype:
            said, heard = (f"{t.dtype} {tuple(t.shape)}" for t in (answered, x))
            raise ValueError(f'the answer at "{path}" is {said}, heard was {heard}: they must be alike')
        return answered

    def _keeps(self, path: str) -> bool:
        if self._layers is not None:
            layer = re.search(r"(?:^|\.)layers\.(\d+)(?:\.|_|$)", path)
            if layer is not None and int(layer[1]) not in self._layers:
                return False
        return self._only is None or any(matches(path, pattern) for pattern in self._only)

    def _answer_to(self, path: str) -> Callable[[Tensor], Tensor] | None:
        for pattern, make in self._answer.items():
            if matches(path, pattern):
                self._answered.add(pattern)
                return make
        return None

    def check_answers(self) -> None:
        """An answer to what was never said is a mistake in its name."""
        idle = [pattern for pattern in self._answer if pattern not in self._answered]
        if idle and self._places:
            heard = ", ".join(list(self.values)[:12]) or "nothing was kept"
            raise ValueError(f'nothing was called "{idle[0]}", so its answer was never used; heard: {heard}')

    def enter(self, module: nn.Module) -> None:
        if not self._calls:
            self._calls.append(_Call(module, self._inside(self._model, "").get(module, [""])[0]))
            return
        parent = self._calls[-1]
        inside = self._inside(parent.module, parent.path)
        # A shared part stands in several places: its n-th call inside one parent is its n-th place.
        nth = parent.calls.get(module, 0)
        parent.calls[module] = nth + 1
        places = inside.get(module, [f"{parent.path}.?"])
        self._calls.append(_Call(module, places[min(nth, len(places) - 1)]))

    def _inside(self, module: nn.Module, path: str) -> dict[nn.Module, list[str]]:
        """The places of every part inside of a module that stands at `path`."""
        if (module, path) not in self._places:
            places: dict[nn.Module, list[str]] = {}
            for where, part in paths(module, path):
                places.setdefault(part, []).append(where)
            self._places[module, path] = places
        return self._places[module, path]

    def leave(self) -> None:
        self._calls.pop()


class _Call:
    """One running forward: where it is, and how often it has called each of its children."""

    def __init__(self, module: nn.Module, path: str) -> None:
        self.module, self.path = module, path
        self.calls: dict[nn.Module, int] = {}


@contextlib.contextmanager
def listen(
    model: nn.Module,
    *,
    only: Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    answer: dict[str, Callable[[Tensor], Tensor]] | None = None,
) -> Iterator[Trace]:
    """Hear what `model` notes while it runs.

    only    names, paths or globs to keep; everything if not given
    layers  keep only these layers' values (values outside of layers are kept)
    heads   of attention scores and weights, keep only these heads
    answer  path -> function of the heard tensor; another tensor that it returns takes its place.
            Patterns as in `only`; the first that fits answers

    Compiled modules run eagerly meanwhile, so that they are heard too.
    """
    if _listener.get() is not None:
        raise ValueError("somebody listens already: listen to a module that holds both, or to one after the other")
    trace = Trace(model, [only] if isinstance(only, str) else only, layers, heads, answer or {})

    def enter(module: nn.Module, args: object) -> None:
        if _listener.get() is trace:
            trace.enter(module)

    def leave(module: nn.Module, args: object, output: object) -> None:
        if _listener.get() is trace:
            trace.leave()

    hooks = []
    for module in set(model.modules()):
        hooks.append(module.register_forward_pre_hook(enter))
        hooks.append(module.register_forward_hook(leave, always_call=True))
    # Nothing can be compiled before the compiler is imported, and importing it takes seconds.
    compiler_is_loaded = "torch._dynamo" in sys.modules
    stance = torch.compiler.set_stance("force_eager") if compiler_is_loaded else contextlib.nullcontext()
    token = _listener.set(trace)
    try:
        with stance:
            yield trace
        trace.check_answers()
    finally:
        _listener.reset(token)
        for hook in hooks:
            hook.remove()
