"""The operators of the sections `features` and `prepare`. Each file is named after its operator.

A package adds an operator with an entry point of the group `nightrank.operators`. For the section `features`,
a module contains a subclass of Operator and a subclass of Fitted (etl/ops/base.py). For the section
`prepare`, it contains a FrameOperator (etl/ops/base.py). The `name` of these classes is the name of the file
or entry point. The parameters of an operator are the fields of its class, and the class docstring describes
the operator.
"""
