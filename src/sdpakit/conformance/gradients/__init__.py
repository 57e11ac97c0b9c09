"""Judgement of gradients: bounds, comparison, and a plain program that meets them."""
