"""Who answers outsiders?

This room will hold the HTTP API over a promoted checkpoint, export to other formats, and deployment. It is
empty so far: Burnish serves nothing yet. Left out for good: choosing which checkpoint is live
(``registry``) and producing tokens (``rollout``).
"""
