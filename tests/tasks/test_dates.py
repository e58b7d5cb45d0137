"""Dates against the Gregorian rule written out, NumPy's calendar, and by hand."""

import datetime
import random
import re

import numpy
import pytest

from heedful.tasks import TASKS

BY_HAND = """
1900-01-01 | Monday, 1 January 1900 | Montag, 1. Januar 1900 | 1900年1月1日 星期一 | lundi 1er janvier 1900
1944-06-06 | Tuesday, 6 June 1944 | Dienstag, 6. Juni 1944 | 1944年6月6日 星期二 | mardi 6 juin 1944
1945-05-08 | Tuesday, 8 May 1945 | Dienstag, 8. Mai 1945 | 1945年5月8日 星期二 | mardi 8 mai 1945
1949-10-01 | Saturday, 1 October 1949 | Samstag, 1. Oktober 1949 | 1949年10月1日 星期六 | samedi 1er octobre 1949
1969-07-20 | Sunday, 20 July 1969 | Sonntag, 20. Juli 1969 | 1969年7月20日 星期日 | dimanche 20 juillet 1969
1989-11-09 | Thursday, 9 November 1989 | Donnerstag, 9. November 1989 | 1989年11月9日 星期四 | jeudi 9 novembre 1989
2000-01-01 | Saturday, 1 January 2000 | Samstag, 1. Januar 2000 | 2000年1月1日 星期六 | samedi 1er janvier 2000
2000-02-29 | Tuesday, 29 February 2000 | Dienstag, 29. Februar 2000 | 2000年2月29日 星期二 | mardi 29 février 2000
2010-09-05 | Sunday, 5 September 2010 | Sonntag, 5. September 2010 | 2010年9月5日 星期日 | dimanche 5 septembre 2010
2023-08-31 | Thursday, 31 August 2023 | Donnerstag, 31. August 2023 | 2023年8月31日 星期四 | jeudi 31 août 2023
2024-03-11 | Monday, 11 March 2024 | Montag, 11. März 2024 | 2024年3月11日 星期一 | lundi 11 mars 2024
2025-04-30 | Wednesday, 30 April 2025 | Mittwoch, 30. April 2025 | 2025年4月30日 星期三 | mercredi 30 avril 2025
2026-11-20 | Friday, 20 November 2026 | Freitag, 20. November 2026 | 2026年11月20日 星期五 | vendredi 20 novembre 2026
2099-12-31 | Thursday, 31 December 2099 | Donnerstag, 31. Dezember 2099 | 2099年12月31日 星期四 | jeudi 31 décembre 2099
"""

LANGUAGES = ("en", "de", "zh", "fr")
WEEKDAYS = {
    "en": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "de": "Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag",
    "zh": "星期一 星期二 星期三 星期四 星期五 星期六 星期日",
    "fr": "lundi mardi mercredi jeudi vendredi samedi dimanche",
}


@pytest.mark.parametrize("line", BY_HAND.strip().splitlines())
def test_by_hand(line):
    day, *said = line.split(" | ")
    number = datetime.date.fromisoformat(day).toordinal()
    assert [TASKS[f"dates-{language}"].pair(number) for language in LANGUAGES] == [(day, text) for text in said]


def by_congruence(year, month, day):
    """0 for Monday. Zeller's congruence (1887): March begins the year, and 13 months last 153 days a five."""
    if month < 3:
        year, month = year - 1, month + 12
    from_saturday = (day + 13 * (month + 1) // 5 + year + year // 4 - year // 100 + year // 400) % 7
    return (from_saturday + 5) % 7


@pytest.mark.parametrize("language", LANGUAGES)
def test_weekdays_of_two_centuries(language):
    """Every third day from end to end, against Zeller's congruence; and NumPy counts the same days."""
    task = TASKS[f"dates-{language}"]
    (days,) = task.kinds
    names = WEEKDAYS[language].split()
    first = numpy.datetime64("1900-01-01")
    assert len(days) == int((numpy.datetime64("2100-01-01") - first).astype(int)) == 73_049
    for later in range(0, len(days), 3):
        source, target = task.pair(days[later])
        assert source == str(first + later)
        year, month, day = map(int, source.split("-"))
        (weekday,) = (name for name in names if name in target)
        assert weekday == names[by_congruence(year, month, day)]
        figures = [int(figure) for figure in re.findall(r"\d+", target)]
        assert figures == ([year, month, day] if language == "zh" else [day, year])


def test_only_the_first_in_french_is_an_ordinal():
    task = TASKS["dates-fr"]
    rng = random.Random(0)
    for source, target in (task.pair(task.draw(rng)) for _ in range(2000)):
        assert ("1er " in target) == source.endswith("-01")
        assert re.fullmatch(r"[a-z]+ (1er|[2-9]|[12][0-9]|3[01]) [a-zéû]+ (19|20)\d\d", target)


def test_all_days_are_trained_on_or_held_out():
    task = TASKS["dates-en"]
    with pytest.raises(ValueError, match=r"there are \d+$") as error:
        task.held_out(20_000, seed=0)
    most = int(str(error.value).split()[-1])
    assert 0.09 * 73_049 < most < 0.11 * 73_049
    held_out = {pair.source for pair in task.held_out(most, seed=0)}
    trained = {pair.source for pair in task.training(150_000, seed=0)}
    assert len(held_out) == most
    assert not held_out & trained
    # A day that may be drawn is missed by all of 150,000 with probability exp(-150,000 / 65,700), one in ten.
    assert len(trained) > 0.85 * (73_049 - most)
