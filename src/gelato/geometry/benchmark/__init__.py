"""Throughput and length error of every solver on one trained decoder, beside stochman."""
