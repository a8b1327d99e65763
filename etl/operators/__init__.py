"""The operators of the sections `features` and `prepare`. Each file is one operator, which has its name.

A package adds an operator by an entry point of the group `nightrank.operators`. A module contains a subclass
of Operator (etl/ops/base.py) and one of Fitted, or a FrameOperator (etl/ops/frames.py) for the section
`prepare`. Their `name` is that of the file or entry point. The parameters of an operator are the fields of
its class, and its docstring describes it.
"""
