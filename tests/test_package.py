"""The house: imports go one way, cost what they should, and nothing is used that is not declared."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import heedful

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "heedful"
FILES = sorted(PACKAGE.rglob("*.py"))

# Each may import those before it, and its own.
LEVELS = [
    ("trace", "side", "disk", "known", "tasks"),
    ("mask", "position"),
    ("context",),
    ("attention",),
    ("block", "embedding", "head"),
    ("model",),
    ("models",),
    ("convert", "surgery"),
    ("folder",),
    ("data", "decode"),
    ("train",),
    ("explain",),
    ("cli",),
    ("__main__",),
]


def _part(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _imports(file: Path) -> list[tuple[str, bool]]:
    """Modules that a file imports, and whether for types alone."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for_types = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.append((node.module, id(node) in for_types))
        elif isinstance(node, ast.Import):
            found += [(alias.name, id(node) in for_types) for alias in node.names]
    return found


def test_every_part_has_a_level() -> None:
    assert {_part(file) for file in FILES} - {"__init__"} == {name for level in LEVELS for name in level}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_go_one_way(file: Path) -> None:
    level = {name: n for n, names in enumerate(LEVELS) for name in names}
    here = _part(file)
    for module, for_types in _imports(file):
        parts = module.split(".")
        if parts[0] != "heedful" or len(parts) < 2 or for_types or here == "__init__":
            continue
        other = parts[1]
        # Within the first level: a mask reads sides; nothing else reads its neighbour.
        allowed = other == here or level[other] < level[here] or (here, other) == ("mask", "side")
        assert allowed, f"{here} imports {other}"


def test_every_import_is_declared() -> None:
    """What everybody needs is a dependency; what one option needs is an extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    def names(lines: list[str]) -> set[str]:
        return {re.split(r"[<>=\[;]", line)[0].replace("-", "_") for line in lines}

    extras = {name: names(lines) for name, lines in project["optional-dependencies"].items()}
    used = {module.split(".")[0] for file in FILES for module, _ in _imports(file)}
    foreign = used - set(sys.stdlib_module_names) - {"heedful"}
    assert names(project["dependencies"]) <= foreign
    assert foreign - names(project["dependencies"]) <= set.union(*(extras[name] for name in ("hf", "tensorboard")))


def test_constraints_are_versions_alone() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.+-]+", line) for line in pinned)
    assert "torch==2.13.0" in pinned


def test_no_code_runs_what_a_file_says() -> None:
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "compile", "__import__"), file
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                assert not {"pickle", "marshal", "shelve", "yaml"} & set(names), file


def test_no_mask_is_a_large_number() -> None:
    """-1e9 and its kin work until a score is larger."""
    for file in FILES:
        numbers = [
            node.value
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            if isinstance(node, ast.Constant) and isinstance(node.value, float)
        ]
        assert all(abs(number) < 1e6 for number in numbers), file


def _python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_heedful_imports_nothing_heavy() -> None:
    """So `import heedful` costs less than `import torch`, and --help answers at once."""
    assert (
        _python("import sys, heedful, heedful.cli; print([m for m in ('torch', 'numpy') if m in sys.modules])") == "[]"
    )


def test_importing_masks_and_models_leaves_the_compiler_out() -> None:
    code = "import sys, heedful.mask, heedful.models, heedful.folder; print([m for m in sys.modules if m in {}])"
    heavy = ("torch._dynamo", "torch._inductor", "transformers")
    assert _python(code.format(heavy)) == "[]"


def test_import_takes_at_most_a_little_longer_than_torch() -> None:
    """Processor time of every part of heedful that a model needs against torch alone, the best of three."""
    code = "import time; t = time.process_time(); import {}; print(time.process_time() - t)"
    torch = min(float(_python(code.format("torch"))) for _ in range(3))
    parts = "heedful, heedful.models, heedful.folder, heedful.surgery"
    mine = min(float(_python(code.format(parts))) for _ in range(3))
    assert mine <= 1.15 * torch


def test_the_shelf_holds_what_it_says() -> None:
    for name in heedful.__all__:
        assert getattr(heedful, name) is not None
    assert set(heedful.__all__) <= set(dir(heedful))


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    names = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert names == set(heedful.__all__) - {"__version__"}


def test_the_version_is_one() -> None:
    from importlib.metadata import version

    assert version("heedful") == heedful.__version__
