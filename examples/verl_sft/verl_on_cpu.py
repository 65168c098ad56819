"""Lets verl 0.9 train on a machine without accelerators.

verl asks its platform which device there is. This module registers one for the CPU; verl loads it
with VERL_USE_EXTERNAL_MODULES=verl_on_cpu and VERL_PLATFORM=cpu. Each worker still claims one of
Ray's GPUs, so that a job is placed as it would be on real ones. For tests: only supervised training
runs this way, because verl's rollout engines need a GPU.
"""

import contextlib
import types

import torch
import torch.distributed
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

CPU = torch.device("cpu")
# verl divides by the memory of a device; any number will do.
MEMORY_BYTES = 16 << 30


def nothing(*_args, **_kwargs):
    """Stands in for what a CPU has no need of."""


def zero(*_args, **_kwargs):
    return 0


def device_module():
    """What verl takes of `torch.cuda` on other machines."""
    module = types.ModuleType("cpu_device")
    for name in ("empty_cache", "ipc_collect", "reset_peak_memory_stats", "set_device", "synchronize"):
        setattr(module, name, nothing)
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        setattr(module, name, zero)
    module.is_available = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: CPU
    module.get_device_name = lambda *_: "cpu"
    module.get_device_properties = lambda *_: types.SimpleNamespace(total_memory=MEMORY_BYTES)
    module.mem_get_info = lambda *_: (MEMORY_BYTES, MEMORY_BYTES)
    module.get_rng_state = lambda *_: torch.get_rng_state()
    module.set_rng_state = lambda state, *_: torch.set_rng_state(state)
    module.manual_seed = module.manual_seed_all = torch.manual_seed
    for name in ("Stream", "stream", "current_stream"):
        setattr(module, name, getattr(torch.cpu, name))
    return module


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    device_name = "cpu"
    vendor_name = "cpu"
    device_module = device_module()

    set_device = synchronize = set_allocator_settings = empty_cache = nothing
    profiler_start = profiler_stop = cudart = get_collective_module = nothing

    def is_available(self):
        return True

    def is_platform_available(self, use_smi_check=False):
        return True

    def current_device(self):
        return CPU

    def device_count(self):
        return 1

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "CUDA_VISIBLE_DEVICES"

    def nvtx_range(self, msg):
        return contextlib.nullcontext()

    def ray_resource_name(self):
        return "GPU"

    def ray_noset_envvars(self):
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def ray_resource_options(self, num_gpus):
        return {"num_gpus": num_gpus}

    def is_ipc_supported(self):
        return False


def register_engine():
    """verl's engine for FSDP is registered for other devices only."""
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    register = EngineRegistry.register(
        model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu", vendor="cpu"
    )
    register(FSDPEngineWithLMHead)


original_init = torch.distributed.init_process_group


def init_process_group(backend=None, *args, **kwargs):
    """verl names one backend for the CPU and one for its device; here they are the same."""
    # The engine cannot be imported together with this module: verl itself is being imported then.
    register_engine()
    if backend == "cpu:gloo,cpu:gloo":
        backend = "cpu:gloo"
    return original_init(backend, *args, **kwargs)


torch.distributed.init_process_group = init_process_group
