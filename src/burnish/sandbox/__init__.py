"""Who runs untrusted code?

This room will hold the boxes in which text written by a model is executed: a pool of forked, namespaced
Python processes with limits on CPU time, memory and output, and containers behind the same protocol. It is
empty so far: Burnish has no box to run model text in yet, and runs none. Left out for good: deciding whether
an answer is right (``verify``). A grader's own box, which may hold gold because it never runs model text, is
not this one.
"""
