"""Messages <-> tokens and loss masks; the tool-call grammar of each template.

    folder --load_tokenizer--> TextTokenizer --Renderer--> Rendered (ids, source, use, message_index, forks)
                                                      \\--> Extension | Fork (next turn of a rollout)
    reply text --parse_reply--> (Message, CALL | NO_CALL | UNPARSEABLE)

A model's own chat template does the writing. Where it would rewrite what was already written, a `Fork` says
so; nothing is re-encoded behind the caller's back. Left out: images (refused by name), sampling (`rollout`),
rows and files (`data`), and any judgement of an answer (`verify`). No torch and no transformers here.
"""

from burnish.render.grammar import Grammar, parse_reply
from burnish.render.renderer import Extension, Renderer
from burnish.render.show import picture
from burnish.render.spans import Fork, ForkKind, Rendered
from burnish.render.tokenizer import TextTokenizer, load_tokenizer
from burnish.render.truncation import Truncation, truncate

__all__ = [
    "Extension",
    "Fork",
    "ForkKind",
    "Grammar",
    "Rendered",
    "Renderer",
    "TextTokenizer",
    "Truncation",
    "load_tokenizer",
    "parse_reply",
    "picture",
    "truncate",
]
