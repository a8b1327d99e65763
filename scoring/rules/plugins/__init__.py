"""The business rules. Each file defines one rule, and the name of the file is its key in `score.rules`.

A package adds a rule by an entry point of the group `nightrank.rules`. The module of a rule contains

    class Settings(RuleSettings)     the keys of the rule below score.rules.<name>. Its docstring describes
                                     the rule. conf/list_types.py defines RuleSettings; a class derived from
                                     `Strict` is accepted too
    load(settings: Settings, inputs: RuleInputs) -> ItemRule
                                     called in each process that makes lists (scoring/rules/item_rule.py)
    digest(settings: Settings, run_date: str) -> str
                                     optional: a digest of the tables that `load` reads in addition to the
                                     attributes. The lists are made again if the digest changes
    check(settings: Settings, attributes: Mapping[str, pa.Table]) -> None
                                     optional: called before lists are made, with the rows (key, value) of
                                     each attribute; it may log warnings or raise a DataError

Every job reads the settings, and so imports the modules. To keep this fast, a module imports torch inside its
functions.
"""
