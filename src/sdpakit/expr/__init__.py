"""The scalar language of masks and logit changes.

`nodes` holds the immutable nodes, `values` and `functions` what users write with, `trace` turns a
Python function into a node, `text` prints and parses, `rewrite` replaces parts, `evaluate` defines
every operation.
"""
