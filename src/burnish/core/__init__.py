"""What crosses rooms: tasks, messages, trajectories, verdicts, protocols, config base, errors, seeds.

Leaves out anything that computes with a model, runs untrusted code or writes to a run folder.
Import the names from their modules (`burnish.core.types`, `burnish.core.errors`, ...).
"""
