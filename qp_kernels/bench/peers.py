"""vLLM's, FlashInfer's and transformers' code, found where it is installed or in an ignored folder; none of it is ours.

What `.peers` of a clone may hold (benchmarks/README.md says how to fill it):

    topk_topp_triton.py     vllm/v1/sample/ops/topk_topp_triton.py of a vLLM wheel
    flashinfer/             data/include/flashinfer of a flashinfer-python wheel (its .cuh files)
    VERSIONS                lines "vllm 0.33.0" and "flashinfer-python 0.7.4"

An installed package comes first.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import re
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import results

FOLDER = results.ROOT / ".peers"
WRAPPER = Path(__file__).with_name("flashinfer_masks.cu")
VLLM_MODULE = "vllm.v1.sample.ops.topk_topp_triton"
ROW_STATE_BYTES = 1 << 20


class Unavailable(Exception):
    """Why a peer cannot run here."""


@dataclass(frozen=True)
class Vllm:
    """`apply(logits, k, p)` works in place: k int32 [B] or None, p float32 [B] or None."""

    version: str
    apply: Callable[[Tensor, Tensor | None, Tensor | None], Tensor]
    forget: Callable[[], None]


@dataclass(frozen=True)
class FlashInfer:
    """`top_k_mask(logits, k)` gives masked logits, `top_p_renorm(probs, p)` probabilities, 0 for what is dropped."""

    version: str
    top_k_mask: Callable[[Tensor, int], Tensor]
    top_p_renorm: Callable[[Tensor, float], Tensor]
    forget: Callable[[], None]


def vllm(device: torch.device, folder: Path = FOLDER) -> Vllm:
    """Raises Unavailable."""
    _needs_a_card(device)
    module, version = _installed("vllm", VLLM_MODULE)
    if module is None:
        module, version = _vllm_file(folder / "topk_topp_triton.py"), _version_in(folder, "vllm")
    # It keeps one buffer for each vocabulary and device.
    buffers = getattr(module, "_TRITON_BUFFER_CACHE", {})
    return Vllm(version, module.apply_top_k_top_p_triton, buffers.clear)


def flashinfer(device: torch.device, folder: Path = FOLDER) -> FlashInfer:
    """Raises Unavailable."""
    _needs_a_card(device)
    module, version = _installed("flashinfer", "flashinfer.sampling")
    if module is not None:
        buffers = getattr(sys.modules.get("flashinfer.utils"), "_cache_buf", {})
        return FlashInfer(version, module.top_k_mask_logits, module.top_p_renorm_probs, buffers.clear)
    return _flashinfer_library(_built(folder), _version_in(folder, "flashinfer-python"))


def transformers_warpers() -> tuple[str, Callable[[int | None, float | None], list[Callable[..., Tensor]]]]:
    """Its version, and the steps (input_ids, scores) -> scores for k and p. Raises Unavailable."""
    module, version = _installed("transformers", "transformers.generation.logits_process")
    if module is None:
        raise Unavailable("transformers is not installed")

    def steps(k: int | None, p: float | None) -> list[Callable[..., Tensor]]:
        found = [] if k is None else [module.TopKLogitsWarper(k)]
        return found if p is None else [*found, module.TopPLogitsWarper(p)]

    return version, steps


def _needs_a_card(device: torch.device) -> None:
    if device.type != "cuda":
        raise Unavailable("it needs a CUDA device")


@functools.cache
def _installed(package: str, module: str) -> tuple[Any, str]:
    """(module, version) of an installed package, (None, "") without it. Raises Unavailable where it cannot be used."""
    if importlib.util.find_spec(package) is None:
        return None, ""
    try:
        found = importlib.import_module(module)
    except Exception as error:  # a package built for another torch fails in any way
        reason = str(error).partition("\n")[0]
        raise Unavailable(f"{package} is installed and cannot be imported: {reason}") from error
    for name in (package, f"{package}-python"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return found, importlib.metadata.version(name)
    return found, "unknown"


def _version_in(folder: Path, package: str) -> str:
    path = folder / "VERSIONS"
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    return dict(line.split() for line in lines if line.strip()).get(package, "unknown")


@functools.cache
def _vllm_file(path: Path) -> Any:
    """The file of a wheel as a module, with stand-ins for what it imports of vLLM."""
    if not path.is_file():
        raise Unavailable(f"vllm is not installed, and there is no {path.name} in {path.parent.name}")
    with _stand_ins():
        spec = importlib.util.spec_from_file_location("_peer_vllm", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _stand_ins():
    """The modules of vLLM that the file imports, as far as a launch needs them."""
    import triton
    import triton.language as tl

    def units(index=None):
        return torch.cuda.get_device_properties(index or 0).multi_processor_count

    anything = dict.fromkeys(("WarmupChoices", "WarmupIntRange", "_when"))
    modules = {
        "vllm.model_executor.warmup.jit_warmup": anything,
        "vllm.model_executor.warmup.jit_warmup_triton_helper": {
            "DispatchSpec": tuple,
            "TritonWarmupTensor": None,
            "triton_kernel_dispatcher_with_warmup": _dispatcher,
        },
        "vllm.platforms": {"current_platform": types.SimpleNamespace(is_cuda_alike=torch.cuda.is_available)},
        "vllm.triton_utils": {"tl": tl, "triton": triton},
        "vllm.utils.gpu_sync_debug": {"gpu_sync_allowed": contextlib.nullcontext},
        "vllm.utils.math_utils": {"next_power_of_2": triton.next_power_of_2},
        "vllm.utils.platform_utils": {"num_compute_units": functools.cache(units)},
    }
    before = {name: sys.modules.get(name) for name in modules}
    for name, content in modules.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(content)
    try:
        yield
    finally:
        for name, module in before.items():
            sys.modules.pop(name) if module is None else sys.modules.update({name: module})


def _dispatcher(kernel, warmup_inputs):
    """A launch: the decorated function says grid and options, its own arguments go to the kernel by name."""

    def decorate(choose):
        signature = inspect.signature(choose)
        strides = [(name, re.fullmatch(r"(.+?)_stride_?(\d*)", name, re.IGNORECASE)) for name in kernel.arg_names]

        def launch(*args, **kwargs):
            given = signature.bind(*args, **kwargs).arguments
            grid, options = choose(*args, **kwargs)[:2]
            arguments = dict(options)
            for name, value in given.items():
                for target in (name, f"{name}_ptr", name.upper(), f"{name.upper()}_PTR"):
                    if target in kernel.arg_names:
                        arguments.setdefault(target, value)
            for name, found in strides:
                if name not in arguments and found:
                    arguments[name] = arguments[found[1]].stride(int(found[2] or 0))
            kernel[grid](**arguments)

        return launch

    return decorate


@functools.cache
def _flashinfer_library(path: Path, version: str) -> FlashInfer:
    library = ctypes.CDLL(str(path))
    states: dict[torch.device, Tensor] = {}

    def call(name, source, limit, workspace):
        source, target = source.contiguous(), torch.empty_like(source)
        batch, vocab = source.shape
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (source, target, workspace)]
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        status = getattr(library, name)(*pointers[:2], batch, limit, vocab, pointers[2], stream)
        if status != 0:
            raise RuntimeError(f"FlashInfer's {name} ended with CUDA error {status}")
        return target

    def top_k_mask(logits: Tensor, k: int) -> Tensor:
        if logits.device not in states:  # kept between calls, as the package does: a launch leaves it zeroed
            states[logits.device] = torch.zeros(ROW_STATE_BYTES, dtype=torch.uint8, device=logits.device)
        return call("top_k_mask", logits, k, states[logits.device])

    def top_p_renorm(probs: Tensor, p: float) -> Tensor:
        workspace = torch.empty(_workspace_bytes(*probs.shape), dtype=torch.uint8, device=probs.device)
        return call("top_p_renorm", probs, ctypes.c_float(p), workspace)

    return FlashInfer(version, top_k_mask, top_p_renorm, states.clear)


def _workspace_bytes(batch: int, vocab: int) -> int:
    """What FlashInfer's `top_p_renorm_probs` allocates with sums that do not depend on the run."""

    def whole(size):
        return -(-size // 256) * 256

    buffer = max(whole(vocab // 32), 256)
    return sum(whole(size * batch) for size in (384, 8 * 2048, 4 * 2048, 4 * buffer, 4 * buffer))


def _built(folder: Path) -> Path:
    """The library made of FlashInfer's headers and the file beside this one; half a minute of nvcc, once."""
    library = folder / "flashinfer.so"
    if library.is_file():
        return library
    compiler = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if not (folder / "flashinfer" / "sampling.cuh").is_file() or compiler is None:
        raise Unavailable(f"flashinfer is not installed, and {folder.name} has no headers of it, or there is no nvcc")
    command = [compiler, "-O2", "-std=c++17", "-arch=native", "--shared", "-Xcompiler", "-fPIC", "-I", folder]
    done = subprocess.run(list(map(str, [*command, "-o", library, WRAPPER])), capture_output=True, text=True)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise Unavailable(f"nvcc could not compile FlashInfer's headers: {last}")
    return library
