"""The formats of raw tables. Each file is one format, and has the name of the format.

A package adds a format with an entry point of the group `nightrank.readers`. The module of a format contains

    class Settings(FormatSettings)   its docstring describes the format, and its attributes define rules
                                     for settings (conf/raw_types.py). A package may omit this class
    class Reader(TableReader)        reads the files (etl/readers/base.py)

Instead of the class `Reader`, a module may have a function `reader` that returns the class. Every job imports
the settings of all formats. The readers of the formats in this folder are modules of etl/readers. A process
imports such a module only when it reads files of the format.
"""
