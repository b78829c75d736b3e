"""What is written down or raises an alarm: metric table, events, run folder, trackers, curves, machine facts.

Leaves out who decides on what was written (`evals`, `registry`) and how it is shown (`cli`, `dashboard`).
Import the names from their modules (`burnish.observe.events`, `burnish.observe.run_folder`, ...).
"""
