"""The `barnabas` command: the process from its arguments to its exit code.

Exit codes: 0 done; 1 the work failed (a row lost, a broker not reached); 2 the call is wrong; 130 ended by Ctrl-C; 141 the reader of the
output has ended; 143 ended by SIGTERM.
"""

from __future__ import annotations

try:  # Ctrl-C is obeyed from the first import on
    import gc
    import sys
    import warnings
    from typing import Final

    from barnabas.cli.client_properties import WrongCall
    from barnabas.cli.streams import OutputUnwritable, given_up, repair_streams, written_out
except KeyboardInterrupt:
    raise SystemExit(130) from None

GARBAGE_OBJECTS: Final = 20_000  # new objects until a search of cycles: Python's 700 search while a batch is written


def main() -> None:
    """The entry point of the console script."""
    try:
        gc.disable()  # the imports of a command make no garbage
        repair_streams()
        code = written_out(exit_code())
        gc.freeze()  # the end of the process searches no cycles: that takes longer than a short command
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def exit_code() -> int:
    """Runs the command of the process's arguments; returns the exit code."""
    try:
        result = _called(sys.argv[1:])
    except WrongCall as error:
        print(f"barnabas: {error}", file=sys.stderr)
        return 2
    except SystemExit as end:
        result = end.code
    except KeyboardInterrupt:
        warnings.simplefilter("ignore")  # Python warns of a coroutine that has not begun
        return 130
    except OutputUnwritable as error:
        return given_up(error)
    return result if isinstance(result, int) else 0


def _called(arguments: list[str]) -> object:
    from barnabas.cli.app import called

    gc.freeze()  # the searches of the command leave out what the imports have made
    gc.set_threshold(GARBAGE_OBJECTS, 10, 10)
    gc.enable()
    return called(arguments)


if __name__ == "__main__":
    main()
