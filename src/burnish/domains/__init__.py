"""Which tasks exist: each domain is a generator, an environment and a verifier under one name.

Import the names from their modules. Leaves out rows that a user brings (`data`).
"""
