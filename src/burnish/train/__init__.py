"""What moves weights? Step, one loop per stage, optimiser, checkpoint, sharding.

Leaves out the formulas (`objectives`), the sampling (`rollout`) and the decisions (`evals`, `registry`).
"""
