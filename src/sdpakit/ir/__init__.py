"""The attention program: built from a spec, printed, checked, rewritten and interpreted."""
