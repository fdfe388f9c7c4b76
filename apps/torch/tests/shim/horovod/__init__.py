"""For Horovod's own tests, which import `horovod`: kolo.horovod by that name. Not in the wheel."""
import sys
import threading
import types

import kolo.horovod.exceptions
import kolo.horovod.torch
import kolo.horovod.torch.mpi_ops


def _in_thread(target, args=(), name=None, daemon=True):
    thread = threading.Thread(target=target, args=args, name=name, daemon=daemon)
    thread.start()
    return thread


def _module(name, **contents):
    made = types.ModuleType(name)
    made.__dict__.update(contents, __path__=[])
    sys.modules[name] = made
    return made


torch = kolo.horovod.torch
for _name, _aliased in list(sys.modules.items()):
    if _name.startswith("kolo.horovod."):
        sys.modules[_name.removeprefix("kolo.")] = _aliased
common = _module("horovod.common", exceptions=kolo.horovod.exceptions)
sys.modules["horovod.common.exceptions"] = kolo.horovod.exceptions
_module("horovod.common.util")
_module("horovod.runner")
_module("horovod.runner.util")
_module("horovod.runner.util.threads", in_thread=_in_thread)
