"""What was made from what, and which checkpoint is live: runs, checkpoints, decisions, promotion, rollback.

Leaves out who decides (`evals`) and what a checkpoint holds (`train`). Start at `burnish.registry.registry`.
"""
