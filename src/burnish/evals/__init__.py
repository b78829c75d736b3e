"""Is this checkpoint better? Suites, statistics, diagnosis, gate, report.

Import the names from their modules (`burnish.evals.gate`, `burnish.evals.stats`, ...). Leaves out what moves
weights (`train`) and what is live (`registry`).
"""
