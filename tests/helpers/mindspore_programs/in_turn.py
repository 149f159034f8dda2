"""Several variants of a program, one after the other on the same ranks: MindSpore starts once.

Arguments: the program, then the arguments of each of its runs. It is run as a script only.
"""

import importlib
import sys


def main():
    name, *rest = sys.argv[1:]
    program = importlib.import_module(name)
    for first in range(0, len(rest), 3):
        sys.argv = [f"{name}.py", *rest[first : first + 3]]
        print(*sys.argv, file=sys.stderr)  # so that an error tells its run
        program.main()


if __name__ == "__main__":
    main()
