"""The README's code is run, its listings are those of the files, and its tree is the tree."""

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from heedful import attend
from heedful.attention import Attention, kernel, layer
from heedful.explain import EXAMPLES
from heedful.trace import listen

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LISTING = re.compile(r"<!-- listing: (\S+) ([^>]+?) -->\n```python\n(.*?)```", re.DOTALL)
BLOCK = re.compile(r"(?<!-->\n)```python\n(.*?)```", re.DOTALL)
LISTINGS = {names: (module, text) for module, names, text in LISTING.findall(README)}


def test_every_block_runs() -> None:
    blocks = BLOCK.findall(README)
    assert len(blocks) >= 6
    space: dict[str, Any] = {}
    for block in blocks:
        exec(block, space)


@pytest.mark.parametrize("names", LISTINGS)
def test_listings_stand_so_in_the_files(names: str) -> None:
    module, text = LISTINGS[names]
    home = importlib.import_module(module)
    sources = []
    for name in names.split():
        found: Any = home
        for part in name.split("."):
            found = getattr(found, part)
        sources.append(inspect.cleandoc("\n" + inspect.getsource(found)))
    between = "\n\n\n" if "." not in names else "\n\n"
    assert text.strip() == between.join(sources)


def test_the_reference_is_short() -> None:
    _, text = LISTINGS["scores weights reference"]
    assert len([line for line in text.splitlines() if line.strip()]) <= 15


def test_the_listing_computes_the_notes_single_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions as the README prints them, on the notes' worked example."""
    space = dict(vars(kernel))
    exec(LISTINGS["scores weights reference"][1], space)
    monkeypatch.setitem(kernel.KERNELS, "reference", space["reference"])
    example = EXAMPLES["self-attention"]
    x = example.inputs()[:, None]
    q, k, v = (x @ torch.tensor(m, dtype=torch.float64) for m in (example.query, example.key, example.value))
    y = attend(q, k, v, kernel="reference")
    want = [[1.969649, 0.091053, 7.757191], [1.996901, 0.009298, 7.975206]]
    torch.testing.assert_close(y[0, 0], torch.tensor(want, dtype=torch.float64), atol=1e-6, rtol=0)


def test_the_listings_compute_the_notes_two_heads() -> None:
    space = dict(vars(layer))
    exec(LISTINGS["Attention.forward Attention.project"][1], space)

    class Printed(Attention):
        forward = space["forward"]
        project = space["project"]

    def linear(rows: list[list[float]]) -> torch.nn.Linear:
        weight = torch.tensor(rows, dtype=torch.float64).T.contiguous()
        made = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=torch.float64)
        made.weight = torch.nn.Parameter(weight)
        return made

    def beside(one: list[list[float]], two: list[list[float]]) -> list[list[float]]:
        return [a + b for a, b in zip(one, two, strict=True)]

    two_heads = Printed(
        4,
        2,
        query=linear(beside([[1, 0], [1, 1], [0, 1], [1, 0]], [[0, 1], [1, 0], [1, 1], [0, 0]])),
        key=linear(beside([[0, 1], [1, 1], [1, 0], [0, 1]], [[1, 1], [0, 1], [0, 0], [1, 0]])),
        value=linear(beside([[0, 2], [1, 0], [1, 1], [0, 0]], [[1, 1], [0, 3], [1, 0], [2, 1]])),
        out=linear([[1, 0, 1, 0], [0, 2, 0, 1], [1, 0, 0, 1], [0, 1, 1, 0]]),
    )
    x: Tensor = EXAMPLES["self-attention"].inputs()
    with listen(two_heads) as trace:
        y = two_heads(x)
    want = [[5.730109, 7.585551, 9.194900, 3.953338], [5.608011, 6.636099, 8.630159, 3.611405]]
    torch.testing.assert_close(y[0], torch.tensor(want, dtype=torch.float64), atol=1e-6, rtol=0)
    shares = torch.tensor([[0.055807, 0.944193], [0.000849, 0.999151]], dtype=torch.float64)
    torch.testing.assert_close(trace["weights"][0, 0], shares, atol=1e-6, rtol=0)


def test_the_two_commands_are_targets() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for command in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{command}:", makefile, re.MULTILINE)


def test_the_map_of_the_notes_is_in_the_first_ten_lines() -> None:
    assert "docs/notes.md" in "\n".join(README.splitlines()[:10])


def test_the_tree_is_the_tree() -> None:
    """Every file of the package is in the README's tree, in its place, and nothing else."""
    tree = README.split("```text\n")[1].split("```")[0]
    shown: set[str] = set()
    folder = ""
    for line in tree.splitlines():
        if line.startswith("tests/"):
            break
        name = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2
        if depth == 0:
            continue
        if depth == 1:
            folder = name if name.endswith("/") else ""
            shown.add(name)
        else:
            shown.add(folder + name)
    here = ROOT / "heedful"
    for name in shown:
        assert (here / name).exists(), name
    files = {str(f.relative_to(here)) for f in here.rglob("*.py") if f.name not in ("__init__.py", "__main__.py")}
    whole = {name for name in shown if name.endswith("/") and not any(s.startswith(name) and s != name for s in shown)}
    missing = {f for f in files if f not in shown and not any(f.startswith(w) for w in whole)}
    assert not missing


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")]:
        for link in re.findall(r"\]\(([^)#]+?)\)", page.read_text(encoding="utf-8")):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name}: {link}"
