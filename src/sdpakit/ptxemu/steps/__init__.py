"""Builders of the steps of all opcodes; importing this package registers them."""
