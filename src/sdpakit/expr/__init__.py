"""The scalar language of masks and logit changes.

`nodes` holds the immutable nodes, `values`, `functions` and `operands` what users write with;
`trace` turns a Python function into a node, `text` prints and parses, `rewrite` replaces parts,
`evaluate` defines every operation. `alignment` says where rows stand, `names` which names are free,
`scope` what a spec leaves to run time.
"""
