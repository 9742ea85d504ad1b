"""On PYTHONPATH, one of SGLang's functions has another parameter name than the plug-in expects; it does the same work."""

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder

CHANGED = "sglang.srt.managers.schedule_policy"


class Finder(MetaPathFinder):
    """Changes the module after it is loaded."""

    def find_spec(self, name, path, target=None):
        if name != CHANGED:
            return None
        spec = PathFinder.find_spec(name, path, target)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            original = module.SchedulePolicy.calc_priority

            def calc_priority(self, requests, *others, **named):
                return original(self, requests, *others, **named)

            module.SchedulePolicy.calc_priority = calc_priority

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder())
