"""Dates in arguments and configurations: ISO dates of years for which every reckoning with days has a result."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any

from pydantic import BeforeValidator

_FIRST_YEAR, _LAST_YEAR = 1970, 2199


def iso_date(value: Any) -> str:
    """The date as YYYY-MM-DD; ValueError otherwise. YAML makes a date of it where it is not quoted."""
    text = value.isoformat() if type(value) is date else str(value)
    parsed = date.fromisoformat(text)
    if parsed.isoformat() != text:
        raise ValueError(f"it is not of the form YYYY-MM-DD: write {parsed.isoformat()}")
    if not _FIRST_YEAR <= parsed.year <= _LAST_YEAR:
        raise ValueError(f"its year is not one from {_FIRST_YEAR} to {_LAST_YEAR}")
    return text


IsoDate = Annotated[str, BeforeValidator(iso_date)]
