"""Gradients on the CPU: five products in register tiles, one order of every sum."""
