"""Dates of 1900 to 2099, from figures to a language's own way of writing them.

    2026-11-20  ->  Friday, 20 November 2026
                    Freitag, 20. November 2026
                    2026年11月20日 星期五
                    vendredi 20 novembre 2026

The weekday is nowhere in the source: a model must work it out from the calendar. It is the hard part.
"""

import functools
from dataclasses import dataclass
from datetime import date

from heedful.tasks.task import Pair, Task


@dataclass(frozen=True)
class Calendar:
    """A language's names, from Monday and from January, and its way of putting them together.

    form     with {weekday}, {day}, {month} and {year}
    first    how the first day of a month is written
    """

    language: str
    weekdays: str
    months: str
    form: str
    first: str = "1"


ENGLISH = Calendar(
    "English",
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "January February March April May June July August September October November December",
    "{weekday}, {day} {month} {year}",
)
GERMAN = Calendar(
    "German",
    "Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag",
    "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
    "{weekday}, {day}. {month} {year}",
)
CHINESE = Calendar(
    "Chinese",
    "星期一 星期二 星期三 星期四 星期五 星期六 星期日",
    "1月 2月 3月 4月 5月 6月 7月 8月 9月 10月 11月 12月",
    "{year}年{month}{day}日 {weekday}",
)
FRENCH = Calendar(
    "French",
    "lundi mardi mercredi jeudi vendredi samedi dimanche",
    "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
    "{weekday} {day} {month} {year}",
    first="1er",
)
CALENDARS = {"en": ENGLISH, "de": GERMAN, "zh": CHINESE, "fr": FRENCH}

# An example's number is its day, counted from the first of January of the year 1.
DAYS = range(date(1900, 1, 1).toordinal(), date(2100, 1, 1).toordinal())


def _written(number: int, calendar: Calendar) -> Pair:
    day = date.fromordinal(number)
    target = calendar.form.format(
        weekday=calendar.weekdays.split()[day.weekday()],
        day=calendar.first if day.day == 1 else day.day,
        month=calendar.months.split()[day.month - 1],
        year=day.year,
    )
    return Pair(day.isoformat(), target)


DATES = tuple(
    Task(
        name=f"dates-{code}",
        says=f"dates of 1900 to 2099, from figures to {calendar.language}, with the weekday",
        kinds=(DAYS,),
        pair=functools.partial(_written, calendar=calendar),
    )
    for code, calendar in CALENDARS.items()
)
