"""heedful against its peers on one CPU core: `make bench`.

    python -m bench                       everything
    python -m bench training decoding     some of it: cpu, training, decoding
    python -m bench --json                one object a line

Only ratios inside one run mean anything: the machine's speed cancels.
"""

import json
import sys

import torch

from bench import cpu, decoding, training
from bench.peers import quiet

WORK = {"cpu": cpu.measure, "training": training.measure, "decoding": decoding.measure}


def main(arguments: list[str]) -> None:
    quiet()
    torch.set_num_threads(1)
    as_json = "--json" in arguments
    asked = [argument for argument in arguments if argument != "--json"]
    if not set(asked) <= set(WORK):
        raise SystemExit(f"there are {', '.join(WORK)}, not {', '.join(sorted(set(asked) - set(WORK)))}")
    if not as_json:
        print(f"{'one core':<38}{'heedful':>18}{'ratio':>9}  {'bar':<10}Hugging Face")
    for name in asked or WORK:
        for made in WORK[name]():
            print(json.dumps(made) if as_json else _line(made), flush=True)


def _line(made: dict[str, object]) -> str:
    bar = f">= {made['at_least']}" if made.get("at_least") else f"<= {made['at_most']}" if made.get("at_most") else ""
    return f"{made['name']:<38}{made.get('heedful', ''):>18}{made['ratio']:>9}  {bar:<10}{made.get('transformers', '')}"


if __name__ == "__main__":
    main(sys.argv[1:])
