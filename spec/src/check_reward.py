"""Runs the rest of its arguments as a program when a reward function can be imported here.

Arguments: the Python file, the name of the function, the program and its arguments. Exit code 2
and a text on stderr when the function is not to be had.
"""

import importlib.util
import os
import sys
import traceback

path, symbol, program = sys.argv[1], sys.argv[2], sys.argv[3:]
# What the import changes is not for the program.
environment = dict(os.environ)


def refuse(what, hint):
    sys.stdout.flush()
    print(f"gangline: reward.{what}\n  hint: {hint}", file=sys.stderr, flush=True)
    os._exit(2)


if not os.path.isfile(path):
    refuse(f"path: no file {path} in {os.getcwd()}",
           "name a file of the job's code, or an absolute path that every node has")
spec = importlib.util.spec_from_file_location("gangline_reward", path)
if spec is None:
    refuse(f"path: {path} is no Python file", "its name ends in .py")
module = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = module
try:
    spec.loader.exec_module(module)
except BaseException:
    traceback.print_exc()
    refuse(f"path: {path} cannot be imported by {sys.executable}",
           "the line above says why; the code and its packages must be importable on the nodes")
if not callable(getattr(module, symbol, None)):
    own = [name for name, value in vars(module).items()
           if callable(value) and getattr(value, "__module__", None) == module.__name__]
    refuse(f"symbol: {path} has no function {symbol}",
           f"set reward.symbol to one of: {', '.join(own[:20]) or '(it defines none)'}")
os.execvpe(program[0], program, environment)
