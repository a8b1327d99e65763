"""Writes the generated files into the checkout: `python -m jobs.reference`, part of `make docs`."""

from __future__ import annotations

from pathlib import Path

from jobs.reference import generated_files

ROOT = Path(__file__).resolve().parents[2]

for name, text in generated_files().items():
    (ROOT / name).write_text(text, encoding="utf-8")
