"""Every schedule equals its formula at every step, PyTorch's and Hugging Face's schedulers, and the notes' values.

Conventions: heedful's step 1 is the first update. PyTorch's schedulers hold, before their first `step()`, the rate of
that update: ours(n) is theirs after n - 1 calls. Hugging Face's warm-ups begin at rate 0, which moves nothing:
ours(n) is theirs after n calls.
"""

import math
import subprocess
import sys

import pytest
import torch
import transformers
from torch.optim import lr_scheduler

from heedful.train.schedule import (
    SCHEDULES,
    constant,
    cosine,
    cycles,
    exponential,
    inverse_root,
    linear,
    noam,
    restarts,
    schedule,
    step_decay,
)

STEPS = range(1, 501)
PEAK, FLOOR = 3e-3, 2e-4


def close(found, expected):
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-15)


def rising(step, warmup):
    return PEAK * step / warmup


def since(step, warmup):
    """Steps since the peak, which is the first step where nothing rises."""
    return step - warmup if warmup > 0 else step - 1


def lowered(part):
    return FLOOR + 0.5 * (PEAK - FLOOR) * (1 + math.cos(math.pi * part))


def jumped(t, every, factor):
    """SGDR, cycle by cycle."""
    first = 0.0
    while t >= first + every:
        first, every = first + every, every * factor
    return lowered((t - first) / every)


def last(warmup):
    return 400 - max(warmup, 1)


CASES = {
    "inverse root": (
        lambda w: inverse_root(PEAK, w),
        lambda s, w: PEAK * math.sqrt(max(w, 1)) / math.sqrt(s),
    ),
    "constant": (lambda w: constant(PEAK, w), lambda s, w: PEAK),
    "linear": (
        lambda w: linear(PEAK, w, 400, FLOOR),
        lambda s, w: FLOOR if s >= 400 else PEAK + (FLOOR - PEAK) * since(s, w) / last(w),
    ),
    "cosine": (
        lambda w: cosine(PEAK, w, 400, FLOOR),
        lambda s, w: FLOOR if s >= 400 else lowered(since(s, w) / last(w)),
    ),
    "cycles": (lambda w: cycles(PEAK, w, 60, FLOOR), lambda s, w: lowered(since(s, w) / 60)),
    "restarts": (lambda w: restarts(PEAK, w, 60, floor=FLOOR), lambda s, w: jumped(since(s, w), 60, 1)),
    "longer restarts": (
        lambda w: restarts(PEAK, w, 30, 1.5, FLOOR),
        lambda s, w: jumped(since(s, w), 30, 1.5),
    ),
    "steps": (lambda w: step_decay(PEAK, w, 70, 0.3), lambda s, w: PEAK * 0.3 ** math.floor(since(s, w) / 70)),
    "exponential": (lambda w: exponential(PEAK, w, 0.97), lambda s, w: PEAK * math.exp(since(s, w) * math.log(0.97))),
}


@pytest.mark.parametrize("warmup", [0, 1, 2, 37, 100])
@pytest.mark.parametrize("case", CASES)
def test_the_formula_at_every_step(case, warmup):
    make, formula = CASES[case]
    rate = make(warmup)
    for step in STEPS:
        close(rate(step), rising(step, warmup) if step < warmup else formula(step, warmup))


@pytest.mark.parametrize("warmup", [1, 2, 37, 400, 4000])
def test_noam_is_the_papers_formula_at_every_step(warmup):
    rate = noam(512, warmup, scale=2.0)
    for step in STEPS:
        close(rate(step), 2.0 * 512**-0.5 * min(step**-0.5, step * warmup**-1.5))


def test_noam_is_the_inverse_root():
    rate, same = noam(512, 100), inverse_root((512 * 100) ** -0.5, 100)
    assert [rate(step) for step in STEPS] == pytest.approx([same(step) for step in STEPS], rel=1e-12)


def test_noam_has_the_notes_values():
    """Computed by an independent program in float64, for width 512 and 4000 steps of warm-up."""
    values = {
        1: 1.746928107421711e-07,
        100: 1.746928107421711e-05,
        1000: 0.0001746928107421711,
        4000: 0.0006987712429686843,
        4001: 0.000698683912937353,
        8000: 0.0004941058844013093,
        16000: 0.00034938562148434214,
        100000: 0.00013975424859373687,
    }
    rate = noam(512, 4000)
    for step, value in values.items():
        close(rate(step), value)
    peaks = {128: 1.397542e-3, 256: 9.882118e-4, 1024: 4.941059e-4}
    for width, value in peaks.items():
        assert noam(width, 4000)(4000) == pytest.approx(value, rel=1e-6)


def test_noam_peaks_where_its_warm_up_ends():
    rate = noam(512, 100)
    assert max(STEPS, key=rate) == 100
    # Four times the steps, or four times the width: half the rate.
    assert rate(400) == pytest.approx(rate(100) / 2, rel=1e-12)
    assert noam(2048, 100)(100) == pytest.approx(rate(100) / 2, rel=1e-12)


def test_the_notes_other_values():
    """Theirs count from 0, where the peak is: our step 1."""
    values = {0: 1.0, 25: 0.8535533905932737, 50: 0.5, 75: 0.14644660940672627, 100: 0.0}
    for t, value in values.items():
        close(cosine(1.0, 0, 101)(t + 1), value)
        close(cycles(1.0, 0, 100)(t + 1), value)
    for t, value in {0: 1.0, 29: 1.0, 30: 0.5, 60: 0.25, 90: 0.125}.items():
        close(step_decay(1.0, 0, 30, 0.5)(t + 1), value)
    for t, value in {0: 1.0, 1: 0.95, 10: 0.5987369392383787, 100: 0.0059205292203339975}.items():
        close(exponential(1.0, 0, 0.95)(t + 1), value)


def test_the_three_cosines_differ_after_the_first_fall():
    """The default stays at the floor, cycles climb back, restarts jump."""
    stays, climbs, jumps = cosine(1.0, 0, 101), cycles(1.0, 0, 100), restarts(1.0, 0, 100)
    for step in range(1, 101):
        close(stays(step), climbs(step))
        close(stays(step), jumps(step))
    assert (stays(101), stays(151), stays(201)) == (0, 0, 0)
    assert (climbs(101), climbs(151), climbs(201)) == pytest.approx((0, 0.5, 1), abs=1e-12)
    assert (jumps(100), jumps(101), jumps(151)) == pytest.approx((0.00024672, 1, 0.5), abs=1e-8)


def theirs(make, count=500):
    """The rates of a scheduler's first updates."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=PEAK)
    scheduler = make(optimizer)
    rates = []
    for _ in range(count):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


PYTORCH = {
    "constant": (lambda w: constant(PEAK, w), lambda o: lr_scheduler.ConstantLR(o, factor=1.0)),
    "linear": (
        lambda w: linear(PEAK, w, 200 + max(w, 1), PEAK / 5),
        lambda o: lr_scheduler.LinearLR(o, start_factor=1.0, end_factor=0.2, total_iters=200),
    ),
    "cycles": (
        lambda w: cycles(PEAK, w, 60, FLOOR),
        lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=60, eta_min=FLOOR),
    ),
    "restarts": (
        lambda w: restarts(PEAK, w, 60, floor=FLOOR),
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=60, eta_min=FLOOR),
    ),
    "longer restarts": (
        lambda w: restarts(PEAK, w, 30, 2, FLOOR),
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=30, T_mult=2, eta_min=FLOOR),
    ),
    "steps": (lambda w: step_decay(PEAK, w, 70, 0.3), lambda o: lr_scheduler.StepLR(o, step_size=70, gamma=0.3)),
    "exponential": (lambda w: exponential(PEAK, w, 0.97), lambda o: lr_scheduler.ExponentialLR(o, gamma=0.97)),
}


@pytest.mark.parametrize("case", PYTORCH)
def test_as_pytorchs_scheduler(case):
    make, other = PYTORCH[case]
    rate = make(0)
    close([rate(step) for step in STEPS], theirs(other))


@pytest.mark.parametrize("case", PYTORCH)
@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step")
def test_as_pytorchs_scheduler_after_its_warm_up(case):
    make, other = PYTORCH[case]
    warmup = 40

    def sequence(optimizer):
        # From peak / warmup at the first update, in 39 more to the peak.
        rising = lr_scheduler.LinearLR(optimizer, start_factor=1 / warmup, total_iters=warmup - 1)
        return lr_scheduler.SequentialLR(optimizer, [rising, other(optimizer)], milestones=[warmup - 1])

    rate = make(warmup)
    close([rate(step) for step in STEPS], theirs(sequence))


@pytest.mark.parametrize("warmup", [1, 40])
def test_as_hugging_faces_schedulers(warmup):
    cases = {
        "cosine": (
            cosine(PEAK, warmup, 400),
            transformers.get_cosine_schedule_with_warmup,
            {"num_training_steps": 400},
        ),
        "linear": (
            linear(PEAK, warmup, 400),
            transformers.get_linear_schedule_with_warmup,
            {"num_training_steps": 400},
        ),
        "inverse root": (inverse_root(PEAK, warmup), transformers.get_inverse_sqrt_schedule, {"timescale": warmup}),
        "constant": (constant(PEAK, warmup), transformers.get_constant_schedule_with_warmup, {}),
    }
    for name, (rate, make, arguments) in cases.items():
        # Their cosine, too, climbs back after its end.
        steps = 400 if name == "cosine" else 500
        expected = theirs(lambda o, m=make, a=arguments: m(o, num_warmup_steps=warmup, **a), steps + 1)[1:]
        close([rate(step) for step in range(1, steps + 1)], expected)


def test_a_run_that_is_all_warm_up():
    for make in (linear, cosine):
        rate = make(PEAK, 5, 5, FLOOR)
        assert [rate(step) for step in (1, 5, 6, 7)] == pytest.approx([PEAK / 5, PEAK, FLOOR, FLOOR])
    assert cosine(PEAK, 0, 1)(1) == PEAK


# By name, from flat settings.


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_has_a_name(name):
    made = schedule(
        name,
        peak=None if name == "noam" else PEAK,
        warmup=10,
        steps=500,
        width=64,
        every=50 if name in {"cycles", "restarts", "steps"} else None,
        factor={"steps": 0.5, "exponential": 0.99}.get(name),
    )
    direct = {
        "noam": lambda: noam(64, 10),
        "inverse-root": lambda: inverse_root(PEAK, 10),
        "constant": lambda: constant(PEAK, 10),
        "linear": lambda: linear(PEAK, 10, 500),
        "cosine": lambda: cosine(PEAK, 10, 500),
        "cycles": lambda: cycles(PEAK, 10, 50),
        "restarts": lambda: restarts(PEAK, 10, 50),
        "steps": lambda: step_decay(PEAK, 10, 50, 0.5),
        "exponential": lambda: exponential(PEAK, 10, 0.99),
    }[name]()
    assert [made(step) for step in STEPS] == [direct(step) for step in STEPS]


def test_settings_reach_the_schedule():
    assert schedule("cosine", peak=1.0, warmup=0, steps=10, floor=0.25)(10) == 0.25
    assert schedule("restarts", peak=1.0, warmup=0, steps=10, every=2, factor=2.0)(7) == 1.0
    assert schedule("restarts", peak=1.0, warmup=0, steps=10, every=2, factor=2.0)(5) == pytest.approx(0.5)


def test_a_given_peak_takes_the_place_of_noams():
    made = schedule("noam", peak=0.5, warmup=10, steps=500)
    assert made(10) == 0.5
    assert made(40) == pytest.approx(0.25)


GOOD = {"name": "cosine", "peak": 1e-3, "warmup": 10, "steps": 100}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": "cosin"}, 'no schedule "cosin"; there are noam, .*; did you mean "cosine"'),
        ({"name": "noam", "peak": None}, "noam needs width"),
        ({"name": "noam", "peak": None, "width": 64, "warmup": 0}, "warmup=0: noam divides by it"),
        ({"name": "noam", "peak": None, "width": 0}, "width=0: noam reads the model's width"),
        ({"peak": None}, "cosine needs peak"),
        ({"name": "steps"}, "steps needs every and factor"),
        ({"name": "cycles"}, "cycles needs every"),
        ({"name": "exponential"}, "exponential needs factor"),
        ({"every": 5}, "every=5: cosine has none; these do: cycles, restarts, steps"),
        ({"factor": 0.5}, "factor=0.5: cosine has none; these do: restarts, steps, exponential"),
        ({"name": "constant", "floor": 1e-4}, "floor=0.0001: constant has none"),
        ({"warmup": -1}, "warmup=-1: a whole number of steps"),
        ({"warmup": 0.1}, "warmup=0.1: a whole number of steps"),
        ({"warmup": 101}, "warmup=101 is longer than the run of steps=100: try warmup=10"),
        ({"name": "constant", "warmup": 101}, "warmup=101 is longer than the run"),
        ({"steps": 0, "warmup": 0}, "steps=0"),
        ({"peak": 0.0}, "peak=0.0: the highest rate is above 0"),
        ({"peak": -1.0}, "peak=-1.0"),
        ({"peak": math.nan}, "peak=nan"),
        ({"peak": math.inf}, "peak=inf"),
        ({"floor": 1e-2}, "floor=0.01: the lowest rate lies from 0 to the peak, 0.001"),
        ({"floor": -1e-4}, "floor=-0.0001"),
        ({"name": "cycles", "every": 0}, "every=0: a whole number of steps"),
        ({"name": "restarts", "every": 5, "factor": 0.5}, "factor=0.5: a fall lasts 1 or more times"),
        ({"name": "steps", "every": 5, "factor": 1.5}, "factor=1.5: the rate falls"),
        ({"name": "exponential", "factor": 0.0}, "factor=0.0: the rate falls"),
    ],
)
def test_what_is_refused(change, says):
    schedule(**GOOD)
    with pytest.raises(ValueError, match=says):
        schedule(**{**GOOD, **change})


def test_steps_count_from_one():
    for name in ("noam", "cosine"):
        with pytest.raises(ValueError, match="step 0: steps count from 1"):
            schedule(name, peak=1e-3, warmup=10, steps=100)(0)


def test_schedules_need_no_torch():
    code = "import sys, heedful.train.schedule; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
