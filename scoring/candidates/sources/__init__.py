"""The sources of candidates. Each file defines one source, whose name is the name of the file.

A package adds a source by an entry point of the group `nightrank.candidate_sources`. The module of a source
contains

    class Settings(SourceSettings)   the keys of the source (conf/list_types.py). Its docstring describes
                                     the source. A source of another package may use the base class `Strict`;
                                     then the keys n and window_days are added to its keys

and one of these two functions:

    candidates(settings: Settings, tables: SourceTables) -> Rows
                                     returns lists: user_key, candidates array<int>, scores array<float>, as
                                     frames of Spark or as Arrow tables, like those in `tables`
                                     (scoring/candidates/source_tables.py)
    propose(settings: Settings, inputs: SourceInputs) -> DataFrame
                                     returns pairs with scores, always as a frame of Spark.
                                     source_tables.py joins and sorts the pairs, and keeps
                                     the best n of each user

Every job reads the settings, so it imports these modules. To keep these imports fast, import large packages,
such as torch, only inside functions.
"""
