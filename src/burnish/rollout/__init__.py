"""Who asks a policy for tokens? Engines, the driver that runs tasks, weight sync and its proof.

Leaves out what a reply is worth (`verify`) and what moves weights (`train`).
"""
