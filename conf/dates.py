"""Dates in arguments and configurations: ISO dates, limited to years in which date arithmetic cannot fail."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any

from pydantic import BeforeValidator

_FIRST_YEAR, _LAST_YEAR = 1970, 2199
EPOCH = date(1970, 1, 1)


def iso_date(value: Any) -> str:
    """Returns a date as YYYY-MM-DD.

    Args:
        value: a text, or the `date` object to which YAML converts an unquoted date.

    Raises:
        ValueError: the value is not a date of this form, or its year is out of range.
    """
    text = value.isoformat() if type(value) is date else str(value)
    parsed = date.fromisoformat(text)
    if parsed.isoformat() != text:
        raise ValueError(f"it is not of the form YYYY-MM-DD: write {parsed.isoformat()}")
    if not _FIRST_YEAR <= parsed.year <= _LAST_YEAR:
        raise ValueError(f"its year must be from {_FIRST_YEAR} to {_LAST_YEAR}")
    return text


def days_since_epoch(day: str | date) -> int:
    """Returns the number of days from 1970-01-01 to `day`, which is a `date` or an ISO date."""
    parsed = date.fromisoformat(day) if isinstance(day, str) else day
    return (parsed - EPOCH).days


IsoDate = Annotated[str, BeforeValidator(iso_date)]
