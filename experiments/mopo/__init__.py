"""One difference at a time between our MOPO and the best-known reproduction of it.

`recording` makes data and runs policies in the simulator, `ensembles` fits dynamics by several
recipes in one program, and `policies` trains many variants of the agent in one program.
`experiments/benchmarks/d4rl.py` is the command.
"""
