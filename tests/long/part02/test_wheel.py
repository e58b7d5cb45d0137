"""A built wheel in an empty environment, outside of the checkout: nothing is missing in it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with an environment that has the wheel, and nothing of the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    run(folder, sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", "dist", str(ROOT))
    (wheel,) = (folder / "dist").glob("heedful-*.whl")
    run(folder, sys.executable, "-m", "venv", "environment")
    pip = [str(folder / "environment" / "bin" / "pip"), "install", "--quiet", "-c", str(ROOT / "constraints.txt")]
    run(folder, *pip, "torch")
    run(folder, *pip, str(wheel))
    return folder


def run(folder, *command):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_demo_runs(installed):
    made = json.loads(run(installed, "environment/bin/heedful", "demo", "--steps", "5", "--json"))
    assert set(made) == {"exact_match", "chrf", "bleu", "train_seconds", "run"}
    assert (installed / made["run"] / "latest" / "model.safetensors").is_file()


def test_what_was_trained_is_used(installed):
    said = run(installed, "environment/bin/heedful", "translate", "runs/demo-de", "twenty-one")
    assert said.count("\n") == 1


def test_its_trainings_are_in_it(installed):
    listed = json.loads(run(installed, "environment/bin/heedful", "recipes", "--json"))
    assert sorted(listed["trainings"]) == sorted(path.stem for path in (ROOT / "heedful" / "trainings").glob("*.toml"))


def test_the_package_is_the_wheels(installed):
    where = run(installed, "environment/bin/python", "-c", "import heedful; print(heedful.__file__)")
    assert where.startswith(str(installed))
