"""How Slurm's tools speak: on stderr, their name first."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence

from rota.cli import streams
from rota.cli.exits import NOT_AUTHORISED, REFUSED, UNREACHABLE
from rota.cli.render import plain
from rota.cli.slurm.options import UsageError


def say(program: str, text: str) -> None:
    sys.stderr.write(f"{program}: {plain(text)}\n")


def error(program: str, text: str, code: int = 1) -> int:
    say(program, f"error: {text}")
    return code


def notes(program: str, texts: Iterable[str]) -> None:
    for text in dict.fromkeys(texts):
        say(program, text)


def guarded(program: str, act: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    """Run a tool's body; whatever a person or a server can do wrong becomes a message and an exit code."""
    from rota.client.errors import Busy, Refused, RotaError, Unauthorised, Unreachable

    streams.open_closed_ones()
    try:
        code = act(argv)
        sys.stdout.flush()  # here, where it can be told of, and not at Python's end
        return code
    except UsageError as problem:
        say(program, f"error: {problem}")
        say(program, f'Try "{program} --help" for more information')
        return 1
    except Unreachable as problem:
        return error(program, f"{problem}; {problem.next_step}", UNREACHABLE)
    except Unauthorised as problem:
        return error(program, f"Access/permission denied: {problem}", NOT_AUTHORISED)
    except Busy as problem:
        return error(program, str(problem), REFUSED)
    except Refused as problem:
        return error(program, str(problem))
    except RotaError as problem:
        return error(program, str(problem), UNREACHABLE)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `squeue | head`: the reader had enough
        streams.drop_output()
        return 141
    except OSError as problem:
        return streams.give_up(program, problem)
