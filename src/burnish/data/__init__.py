"""Rows -> tasks and conversations: sources, duplicates, packing, and the checks before any training.

    file.jsonl --load_conversations--> Conversation --preflight--> PreflightReport
               --load_tasks---------> (Task, sealed Gold, demonstration)

Errors name file:line. Nothing is dropped or repaired on the way: a row is taken whole or refused. Left out:
which tasks exist (`domains`), and who answers them (`envs`).
"""

from burnish.data.dedup import assert_disjoint, find_contradictions, find_duplicates
from burnish.data.packing import pack
from burnish.data.preflight import Finding, PreflightReport, Severity, preflight
from burnish.data.sources import Conversation, LoadedTask, load_conversations, load_tasks

__all__ = [
    "Conversation",
    "Finding",
    "LoadedTask",
    "PreflightReport",
    "Severity",
    "assert_disjoint",
    "find_contradictions",
    "find_duplicates",
    "load_conversations",
    "load_tasks",
    "pack",
    "preflight",
]
