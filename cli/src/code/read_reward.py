"""Looks for a name in a Python file without running it.

Arguments: the file and the name. Exit code 3 and two lines on stdout, what and a hint, when the
file is not Python or nothing in it has the name.
"""

import ast
import sys

path, symbol = sys.argv[1], sys.argv[2]


def refuse(what, hint):
    print(f"{what}\n{hint}")
    sys.exit(3)


with open(path, "rb") as file:
    source = file.read()
try:
    tree = ast.parse(source, path)
except SyntaxError as error:
    refuse(f"line {error.lineno}: {error.msg}", "Python cannot read it; mend it and submit again")
except ValueError as error:
    refuse(str(error), "it is no Python source")

DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
functions, names = [], set()
for node in ast.walk(tree):
    if isinstance(node, DEFINES):
        names.add(node.name)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        names.add(node.id)
    elif isinstance(node, ast.alias):
        names.add(node.asname or node.name.split(".")[0])
for node in tree.body:
    if isinstance(node, DEFINES[:2]):
        functions.append(node.name)
# A star import, or a __getattr__, may bring any name.
if symbol not in names and not names & {"*", "__getattr__"}:
    known = ", ".join(functions[:20]) or "none"
    refuse(f"no function {symbol}", f"set reward.symbol; functions in the file: {known}")
