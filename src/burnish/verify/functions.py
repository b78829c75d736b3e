"""A plain function as a verifier.

    def right(reply: str, gold) -> float: ...

`gold` is the opened payload, a fresh copy each time. A third parameter named `task` receives the `Task`;
`async def` works too. The answer is a bool or a real number: PASS at 1.0 or more, else FAIL with that score.
An exception, a value that is no number, NaN or an infinity is UNDECIDED, flagged `provoked` where the same
function succeeds on a neutral reply to the same gold. Null replies fail without a call.

Cases come from the function's attribute `cases`, or its module's `CASES` (lists of `VerifierCase`). The
version is a hash of the function's source and of the functions, classes and constants of its module that it
uses, so that scores before and after a change are never mixed unsaid; what it imports from elsewhere is not
in the hash.

A function that is not async runs in a daemon thread of its own, so that a deadline returns. Python that loops
is then stopped; C code that loops (a pathological regular expression) cannot be stopped in this process, and
signals (the time-outs of some mathematics packages) do not work in threads.
"""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import inspect
import math
import numbers
import re
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from burnish.core.errors import ConfigError
from burnish.core.outcomes import Outcome
from burnish.core.protocols import VerifierCase
from burnish.core.types import Task
from burnish.verify.base import Finding, Reply, TextVerifier, unparseable
from burnish.verify.text import is_null_reply, shown

_CONSTANTS = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    tuple,
    frozenset,
    list,
    dict,
    set,
    type(None),
    re.Pattern,
)


class NoScore(Exception):
    """The function returned something that is not a finite number."""


class _Stopped(SystemExit):
    """Thrown into the thread of a function whose caller gave up. A SystemExit, because user code lets it by
    and `threading` ends the thread on it without a word."""


class FunctionVerifier(TextVerifier):
    """A function `(reply, gold) -> float` or `(reply, gold, task) -> float` as a verifier.

    Raises: ConfigError where it takes other parameters, or its cases are not `VerifierCase`s.
    """

    max_reply_chars = None  # the function may want long replies; it is the user's to bound them

    def __init__(self, function: Callable[..., Any], name: str = "") -> None:
        self.function = function
        self.name = name or getattr(function, "__name__", type(function).__name__)
        self._takes_task = _takes_task(function, self.name)
        self._is_async = inspect.iscoroutinefunction(function)
        self.version = source_version(function)
        self.cases = _cases(function, self.name)

    async def judge(self, reply: Reply, gold: Any, task: Task) -> Finding:
        """Call the function and turn its number into a finding."""
        if is_null_reply(reply.text):
            return unparseable("the reply says nothing", reply=shown(reply.text))
        arguments = (reply.text, gold, task) if self._takes_task else (reply.text, gold)
        value = self.function(*arguments) if self._is_async else await _in_thread(self.function, arguments)
        if inspect.isawaitable(value):  # also of an object whose `__call__` is async
            value = await value
        score = _score(value)
        outcome = Outcome.PASS if score >= 1.0 else Outcome.FAIL
        return Finding(outcome, score, f"{self.name} gave {score:g}", evidence={"reply": shown(reply.text)})

    def check(self, reply: Reply, gold: Any, task: Task) -> Finding:
        """Not used: a function is awaited in `judge`."""
        raise NotImplementedError


def source_version(function: Callable[..., Any]) -> str:
    """Twelve hex digits of the sources that decide what the function does, as far as its own module goes."""
    seen: dict[str, str] = {}
    _collect(getattr(function, "__func__", function), seen)
    text = "\0".join(f"{name}\0{source}" for name, source in sorted(seen.items()))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def _collect(thing: Any, seen: dict[str, str]) -> None:
    if not isinstance(thing, (FunctionType, type)):
        thing = type(thing)  # a callable object is its class
    name, source = thing.__qualname__, _source(thing)
    while name in seen and seen[name] != source:  # lambdas share a name
        name += "'"
    if name in seen:
        return
    seen[name] = source
    functions = [thing] if isinstance(thing, FunctionType) else [f for f in vars(thing).values() if callable(f)]
    for function in functions:
        if not isinstance(function, FunctionType):
            continue
        for used in sorted(_names(function.__code__)):
            value = function.__globals__.get(used)
            if isinstance(value, (FunctionType, type)) and value.__module__ == thing.__module__:
                _collect(value, seen)
            elif isinstance(value, _CONSTANTS) and used in function.__globals__:
                seen[f"constant {used}"] = _described(value, thing.__module__, seen)
        for used, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # a cell that is still empty
                seen[f"{name}, closed over {used}"] = _described(cell.cell_contents, thing.__module__, seen)


def _described(value: Any, module: str, seen: dict[str, str], inside: tuple[int, ...] = ()) -> str:
    """A constant as text that is the same in every process, and changes with it; functions and classes of the module
    in it are collected."""
    if id(value) in inside:
        return "..."
    inside = (*inside, id(value))
    if isinstance(value, (FunctionType, type)):
        if value.__module__ != module:
            return f"{value.__module__}.{value.__qualname__}"
        _collect(value, seen)
        return value.__qualname__
    if isinstance(value, re.Pattern):
        return f"pattern {value.pattern!r} {value.flags}"
    if isinstance(value, (set, frozenset)):  # their order differs between processes
        return f"{type(value).__name__} {sorted(_described(item, module, seen, inside) for item in value)}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__} {[_described(item, module, seen, inside) for item in value]}"
    if isinstance(value, dict):
        return f"dict {[(repr(key), _described(item, module, seen, inside)) for key, item in value.items()]}"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _names(code: CodeType) -> set[str]:
    """Names that the code and the functions nested in it look up."""
    nested = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*map(_names, nested))


def _source(thing: Any) -> str:
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError) as error:
        code = getattr(thing, "__code__", None)
        if code is None:
            raise ConfigError(
                f"the source of {thing.__qualname__} cannot be read: {error}",
                fix="define it in a file, so that its version can be told",
            ) from None
        # Typed at a prompt: the compiled form tells versions apart.
        return f"{code.co_code.hex()} {code.co_consts!r}"


def _takes_task(function: Callable[..., Any], name: str) -> bool:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    required = [p for p in required if p.kind is not p.VAR_KEYWORD]
    takes_task = len(positional) >= 3 and positional[2].name == "task"
    if len(positional) < 2 or len(required) > 2 + takes_task:
        raise ConfigError(
            f"{name} does not take (reply, gold) or (reply, gold, task)",
            where=getattr(getattr(function, "__code__", None), "co_filename", ""),
            fix="def your_check(reply: str, gold) -> float: ...",
        )
    return takes_task


def _cases(function: Callable[..., Any], name: str) -> Sequence[VerifierCase]:
    module = sys.modules.get(getattr(function, "__module__", "") or "")
    cases = getattr(function, "cases", getattr(module, "CASES", ()))
    if not isinstance(cases, (list, tuple)) or not all(isinstance(case, VerifierCase) for case in cases):
        raise ConfigError(
            f"the cases of {name} are not a list of VerifierCase",
            where=getattr(module, "__file__", "") or "",
            fix="from burnish.core.protocols import VerifierCase",
        )
    return tuple(cases)


def _score(value: Any) -> float:
    if isinstance(value, (bool, np.bool_)):
        return float(value)
    if not isinstance(value, numbers.Real):
        raise NoScore(f"returned {shown(repr(value))}, which is not a number")
    score = float(value)
    if not math.isfinite(score):
        raise NoScore(f"returned {score}")
    return score


async def _in_thread(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """The function's result, computed in a daemon thread that a cancelled caller stops.

    Not `asyncio.to_thread`: its threads are joined at exit, so one that loops would keep the process alive.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def deliver(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            future.set_exception(error)
        else:  # SystemExit, KeyboardInterrupt, StopIteration: no future can carry them as they are
            future.set_exception(NoScore(f"raised {type(error).__name__}: {error}"))

    def work() -> None:
        result, error = None, None
        try:
            result = function(*arguments)
        except BaseException as caught:  # carried to the caller, where the verifier boundary records it
            error = caught
        if not isinstance(error, _Stopped) and not loop.is_closed():
            loop.call_soon_threadsafe(deliver, result, error)

    thread = threading.Thread(target=work, name=f"verifier-{getattr(function, '__name__', 'function')}", daemon=True)
    thread.start()
    try:
        return await future
    except asyncio.CancelledError:
        if thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_Stopped))
        raise
