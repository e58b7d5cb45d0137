"""A folder with two files, a translator's run and a writer's run, trained once."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.cli.commands import TRANSLATES, WRITES, make_files, right


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """a.en, a.de, RUN (a translator, 6 steps) and LM (a language model, 2 steps)."""
    made = tmp_path_factory.mktemp("cli")
    before = torch.get_num_threads()
    with contextlib.chdir(made):
        make_files()
        right(f"train {TRANSLATES} --out RUN --steps 6 --seed 3")
        right(f"train {WRITES} --out LM --steps 2")
    torch.set_num_threads(before)
    return made


@pytest.fixture
def place(folder: Path) -> Iterator[Path]:
    """In that folder; nobody writes into what the others need."""
    with contextlib.chdir(folder):
        yield folder
