"""Learning rates: a schedule is a pure function of the step.

    rate = cosine(peak=1e-3, warmup=100, steps=5000)
    rate(1), rate(100), rate(5000)             # 1e-5, 1e-3, 0.0

Steps count from 1, the first update, so resuming is arithmetic: nothing is remembered between two calls.
Each schedule rises in a line to its peak at step `warmup`, and then does what its name says.
With warmup=0 the peak stands at step 1.

Where a formula says t, it counts the steps since the peak.
"""

import inspect
import math
from collections.abc import Callable

from heedful.known import unknown

Schedule = Callable[[int], float]


def noam(width: int, warmup: int, scale: float = 1.0) -> Schedule:
    """scale · width^-½ · min(step^-½, step · warmup^-1½)                     Vaswani et al. 2017, arXiv:1706.03762

    It is `inverse_root` with a peak of scale / √(width · warmup). The width is the model's: no length of a text
    stands in it.
    """
    if width < 1:
        raise ValueError(f"width={width}: noam reads the model's width, 1 or more")
    if warmup < 1:
        raise ValueError(f"warmup={warmup}: noam divides by it, so give 1 or more; the paper's is 4000")
    return inverse_root(scale / math.sqrt(width * warmup), warmup)


def inverse_root(peak: float, warmup: int) -> Schedule:
    """peak · √(warmup / step): four times the steps, half the rate. Without warm-up, peak / √step."""
    return _warmed(peak, warmup, lambda t: peak / math.sqrt(1 + t / max(warmup, 1)))


def constant(peak: float, warmup: int) -> Schedule:
    """peak."""
    return _warmed(peak, warmup, lambda t: peak)


def linear(peak: float, warmup: int, steps: int, floor: float = 0.0) -> Schedule:
    """peak + (floor - peak) · t / T

    T steps lead from the peak to step `steps`; from there on it is the floor.
    """
    fall = _span(warmup, steps)
    return _warmed(peak, warmup, lambda t: peak + (floor - peak) * min(t / fall, 1.0), floor)


def cosine(peak: float, warmup: int, steps: int, floor: float = 0.0) -> Schedule:
    """floor + (peak - floor) · (1 + cos(π t / T)) / 2

    T steps lead from the peak to step `steps`; from there on it is the floor.
    """
    fall = _span(warmup, steps)
    return _warmed(peak, warmup, lambda t: _wave(min(t / fall, 1.0), peak, floor), floor)


def cycles(peak: float, warmup: int, every: int, floor: float = 0.0) -> Schedule:
    """floor + (peak - floor) · (1 + cos(π t / every)) / 2

    The cosine that goes on: down to the floor in `every` steps, up again in as many, and so forth.
    """
    _check_every(every)
    return _warmed(peak, warmup, lambda t: _wave(t / every, peak, floor), floor)


def restarts(peak: float, warmup: int, every: int, factor: float = 1.0, floor: float = 0.0) -> Schedule:
    """floor + (peak - floor) · (1 + cos(π (t mod every) / every)) / 2    Loshchilov and Hutter 2017, arXiv:1608.03983

    The cosine that falls to the floor in `every` steps and jumps back to the peak (SGDR).

    factor   each fall lasts so many times as long as the one before
    """
    _check_every(every)
    if not 1 <= factor < math.inf:
        raise ValueError(f"factor={factor}: a fall lasts 1 or more times as long as the one before")

    def after(t: int) -> float:
        if factor == 1:
            return _wave(t % every / every, peak, floor)
        length, since = float(every), float(t)
        while since >= length:
            since, length = since - length, length * factor
        return _wave(since / length, peak, floor)

    return _warmed(peak, warmup, after, floor)


def step_decay(peak: float, warmup: int, every: int, factor: float) -> Schedule:
    """peak · factor^⌊t / every⌋"""
    _check_every(every)
    _check_factor(factor)
    return _warmed(peak, warmup, lambda t: peak * factor ** (t // every))


def exponential(peak: float, warmup: int, factor: float) -> Schedule:
    """peak · factor^t"""
    _check_factor(factor)
    return _warmed(peak, warmup, lambda t: peak * factor**t)


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "noam": noam,
    "inverse-root": inverse_root,
    "constant": constant,
    "linear": linear,
    "cosine": cosine,
    "cycles": cycles,
    "restarts": restarts,
    "steps": step_decay,
    "exponential": exponential,
}


def schedule(
    name: str,
    *,
    peak: float | None,
    warmup: int,
    steps: int,
    width: int | None = None,
    floor: float = 0.0,
    every: int | None = None,
    factor: float | None = None,
) -> Schedule:
    """A schedule by name, from the flat settings of a run of `steps` updates.

    peak     of noam too, where it takes the place of the paper's 1 / √(width · warmup)
    width    the model's; noam alone reads it
    """
    if name not in SCHEDULES:
        raise ValueError(unknown("schedule", name, SCHEDULES))
    if steps < 1:
        raise ValueError(f"steps={steps}: a run has 1 update or more")
    if warmup > steps:
        raise ValueError(f"warmup={warmup} is longer than the run of steps={steps}: try warmup={max(steps // 10, 1)}")
    make: Callable[..., Schedule] = inverse_root if name == "noam" and peak is not None else SCHEDULES[name]
    takes = inspect.signature(make).parameters
    # Every run has these three, whether its schedule asks for them or not.
    settings: dict[str, float | None] = {"peak": peak, "warmup": warmup, "steps": steps, "width": width}
    for setting, value in (("floor", floor or None), ("every", every), ("factor", factor)):
        if value is not None and setting not in takes:
            others = [other for other, made in SCHEDULES.items() if setting in inspect.signature(made).parameters]
            raise ValueError(f"{setting}={value}: {name} has none; these do: {', '.join(others)}")
        settings[setting] = value
    missing = [n for n, p in takes.items() if p.default is p.empty and settings[n] is None]
    if missing:
        raise ValueError(f"{name} needs {' and '.join(missing)}")
    return make(**{n: settings[n] for n in takes if settings.get(n) is not None})


def _warmed(peak: float, warmup: int, after: Callable[[int], float], floor: float = 0.0) -> Schedule:
    """peak · step / warmup, then after(t), where t counts from the peak."""
    if not 0 < peak < math.inf:
        raise ValueError(f"peak={peak}: the highest rate is above 0, such as 1e-3")
    if not isinstance(warmup, int) or warmup < 0:
        raise ValueError(f"warmup={warmup}: a whole number of steps, 0 for none")
    if not 0 <= floor <= peak:
        raise ValueError(f"floor={floor}: the lowest rate lies from 0 to the peak, {peak}")

    def rate(step: int) -> float:
        if step < 1:
            raise ValueError(f"step {step}: steps count from 1, the first update")
        return peak * step / warmup if step < warmup else after(step - max(warmup, 1))

    return rate


def _wave(part: float, peak: float, floor: float) -> float:
    """From the peak at part 0 to the floor at 1, along a cosine."""
    return floor + (peak - floor) * (1 + math.cos(math.pi * part)) / 2


def _span(warmup: int, steps: int) -> int:
    """From the peak to the end; at least 1, so that a run that is all warm-up divides by no zero."""
    if steps < max(warmup, 1):
        raise ValueError(f"steps={steps}: the run ends before its warm-up of {warmup} does")
    return max(steps - max(warmup, 1), 1)


def _check_every(every: int) -> None:
    if not isinstance(every, int) or every < 1:
        raise ValueError(f"every={every}: a whole number of steps, 1 or more")


def _check_factor(factor: float) -> None:
    if not 0 < factor <= 1:
        raise ValueError(f"factor={factor}: the rate falls to a part of itself, above 0 and at most 1")
