"""Compose verl's own configuration with the arguments of our templates.

Reads from stdin a JSON list of cases {name, config, overrides, expect}, where `expect` gives the
value of some keys after composition. Writes to stdout a JSON list with one text per problem. Needs
only hydra-core and the files of verl, not its dependencies.
"""

import importlib.util
import json
import os
import sys

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

MISSING = object()


def plain(value):
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def check(case):
    try:
        config = compose(config_name=case["config"], overrides=case["overrides"])
    except Exception as error:  # every way to refuse an override
        text = str(error).splitlines() or [""]
        return [f"{case['name']}: {type(error).__name__}: {text[0]}"]
    problems = []
    for key, expected in case["expect"].items():
        found = OmegaConf.select(config, key, default=MISSING)
        found = "nothing" if found is MISSING else plain(found)
        if found != expected or type(found) is not type(expected):
            problems.append(f"{case['name']}: {key} is {found!r}, not {expected!r}")
    return problems


def main():
    # find_spec does not import the package, whose dependencies are not there.
    root = importlib.util.find_spec("verl").submodule_search_locations[0]
    folder = os.path.join(root, "trainer", "config")
    problems = []
    with initialize_config_dir(config_dir=folder, version_base=None):
        for case in json.load(sys.stdin):
            problems += check(case)
    json.dump(problems, sys.stdout)


main()
