"""Is the answer right?

Checkers (exact text, numbers, JSON, extraction, tool calls, format, refusal), plain functions wrapped into
checkers, their composition, the boundary that calls them, and the tests that every checker must carry.
Import the names from their modules: `registry.get_verifier`, `runner.verify_one`, `cases.run_cases`,
`conformance.check_verifier_conformance`.

Left out so far: symbolic mathematics, running a reply's code, judges. Left out for good: what a score is
worth in training (`objectives`, `train`) and statistics over verdicts (`evals`).
"""
