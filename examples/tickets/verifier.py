"""Is a ticket routed right? Try it: burnish check verifier verifier.py:route"""

from burnish.verify.case_builders import fooled_others, must_fail, must_pass


def route(reply: str, gold: str) -> float:
    return float(reply.strip().casefold() == gold.casefold())


CASES = [
    must_pass("billing 48213", "billing 48213", "the answer"),
    must_pass("billing 48213", "Billing 48213\n", "another case"),
    must_fail("billing 48213", "billing 48231", "digits swapped"),
    must_fail("billing 48213", "billing none", "the order was not found"),
    fooled_others("billing 48213", "billing 48213 or returns 48213", "lists every candidate"),
]
