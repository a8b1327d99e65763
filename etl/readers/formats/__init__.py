"""The formats of raw tables. Each file is one format, and the name of the file is its name.

A package adds a format by an entry point of the group `nightrank.readers`. The module of a format contains

    class Settings(FormatSettings)   its docstring describes the format, and its attributes say what the
                                     configuration must know of it (conf/raw_types.py). Optional in a package
    class Reader(TableReader)        reads the files (etl/readers/base.py)

A module may have a function `reader` that returns this class, in place of the class. Every job reads the
settings, so the readers of the checkout are in modules of their own, which a process imports when it reads
files of the format.
"""
