"""Walks over the blocks, and what every measurement writes into: recorder, memory budget, metrics."""
