"""The sources of candidates. Each file defines one source, whose name is the name of the file.

A package adds a source by an entry point of the group `nightrank.candidate_sources`. The module of a source
contains

    class Settings(SourceSettings)   the keys of the source (conf/list_types.py). Its docstring describes
                                     the source. If a source of another package uses the base class `Strict`
                                     instead, it also gets the keys n and window_days

and one of these two functions:

    candidates(settings: Settings, tables: SourceTables) -> Rows
                                     returns lists: user_key, candidates array<int>, scores array<float>, as
                                     frames of Spark or as Arrow tables, like those in `tables`
                                     (scoring/candidates/source_tables.py)
    propose(settings: Settings, inputs: SourceInputs) -> DataFrame
                                     returns pairs with scores, always as a frame of Spark.
                                     source_tables.py joins and sorts the pairs, and keeps
                                     the best n of each user

Every job reads the settings, and so imports the modules. To keep this fast, a module imports the packages
that its functions need inside these functions.
"""
