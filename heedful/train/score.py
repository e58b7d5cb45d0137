"""How good translations are: sacreBLEU's BLEU and chrF, with their signatures, and how many are exactly right."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Scores:
    """bleu, chrf    0 to 100
    exact         the share that is the reference, letter for letter
    signatures    how BLEU and chrF were computed, for whoever compares
    """

    bleu: float
    chrf: float
    exact: float
    signatures: tuple[str, str]


def score(translations: Sequence[str], references: Sequence[str], tokenize: str = "13a") -> Scores:
    """Scores of translations against one reference each; `tokenize` is how sacreBLEU cuts words."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    if len(translations) != len(references):
        raise ValueError(f"{len(translations)} translations and {len(references)} references: give one for each")
    if not references:
        raise ValueError("there is nothing to score")
    if tokenize not in BLEU.TOKENIZERS:
        near = difflib.get_close_matches(tokenize, BLEU.TOKENIZERS, n=1)
        raise ValueError(
            f'no way to cut words is called "{tokenize}"; sacreBLEU has {", ".join(sorted(BLEU.TOKENIZERS))}'
            + (f'; did you mean "{near[0]}"?' if near else "")
        )
    try:
        bleu, chrf = BLEU(tokenize=tokenize), CHRF()
    except (RuntimeError, ImportError, OSError) as error:  # some need a package or a file of their own
        raise ValueError(f'tokenize="{tokenize}": sacreBLEU says {error}') from None
    made = bleu.corpus_score(list(translations), [list(references)])
    characters = chrf.corpus_score(list(translations), [list(references)])
    exact = sum(a == b for a, b in zip(translations, references, strict=True)) / len(references)
    return Scores(made.score, characters.score, exact, (f"{bleu.get_signature()}", f"{chrf.get_signature()}"))
