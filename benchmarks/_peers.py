"""Other samplers' masks as functions (logits [B, V] float32, k or None, p or None) -> kept [B, V] bool.

Their files are never part of this repository. What a folder holds (`.peers` in the clone is ignored by git):

    topk_topp_triton.py     vllm/v1/sample/ops/topk_topp_triton.py of a vLLM wheel
    flashinfer/             data/include/flashinfer of a flashinfer-python wheel (its .cuh files)
    VERSIONS                lines "vllm 0.33.0" and "flashinfer-python 0.7.4"

"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import inspect
import re
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import torch

FOLDER = Path(__file__).resolve().parents[1] / ".peers"
WRAPPER = Path(__file__).with_name("_flashinfer.cu")
INF = float("inf")
Mask = Callable[[torch.Tensor, int | None, float | None], torch.Tensor]


def versions(folder: Path = FOLDER) -> dict[str, str]:
    import transformers

    found = {"transformers": transformers.__version__}
    if (folder / "VERSIONS").is_file():
        found |= dict(line.split() for line in (folder / "VERSIONS").read_text("utf-8").splitlines() if line)
    return found


def available(folder: Path = FOLDER) -> dict[str, tuple[str, Mask]]:
    """name -> (package, mask) of all that can run here."""
    found = {"transformers": ("transformers", transformers_rule)}
    for name, package, load in (("vllm", "vllm", vllm), ("flashinfer", "flashinfer-python", flashinfer)):
        try:
            found[name] = (package, load(folder))
        except FileNotFoundError as missing:
            print(f"without {name}: {missing}", file=sys.stderr)
    return found


def transformers_rule(logits: torch.Tensor, k: int | None, p: float | None) -> torch.Tensor:
    """What `generate` does: TopKLogitsWarper, then TopPLogitsWarper."""
    from transformers.generation.logits_process import TopKLogitsWarper, TopPLogitsWarper

    scores = logits
    if k is not None:
        scores = TopKLogitsWarper(k)(None, scores)
    if p is not None:
        scores = TopPLogitsWarper(p)(None, scores)
    return scores > -INF


def vllm(folder: Path) -> Mask:
    """vLLM's `apply_top_k_top_p_triton`, on a copy, since it works in place."""
    path = folder / "topk_topp_triton.py"
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path.name} in {folder.name}")
    with _stubs():
        spec = importlib.util.spec_from_file_location("_peer_vllm", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)

    def mask(logits, k, p):
        rows = {"device": logits.device}
        k = None if k is None else torch.full((len(logits),), k, dtype=torch.int32, **rows)
        p = None if p is None else torch.full((len(logits),), p, dtype=torch.float32, **rows)
        return module.apply_top_k_top_p_triton(logits.clone(), k, p) > -INF

    return mask


@contextlib.contextmanager
def _stubs():
    """The modules of vLLM that the file imports, as far as a launch needs them."""
    import triton
    import triton.language as tl

    def units(index=None):
        return torch.cuda.get_device_properties(index or 0).multi_processor_count if torch.cuda.is_available() else 4

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
        "vllm.utils.platform_utils": {"num_compute_units": units},
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
        def launch(*args, **kwargs):
            given = inspect.signature(choose).bind(*args, **kwargs).arguments
            grid, options = choose(*args, **kwargs)[:2]
            arguments = dict(options)
            for name, value in given.items():
                for target in (name, f"{name}_ptr", name.upper(), f"{name.upper()}_PTR"):
                    if target in kernel.arg_names:
                        arguments.setdefault(target, value)
            for name in kernel.arg_names:
                if name not in arguments and (found := re.fullmatch(r"(.+?)_stride_?(\d*)", name, re.IGNORECASE)):
                    arguments[name] = arguments[found[1]].stride(int(found[2] or 0))
            kernel[grid](**arguments)

        return launch

    return decorate


def flashinfer(folder: Path) -> Mask:
    """`top_k_mask_logits`, then softmax and `top_p_renorm_probs`, as FlashInfer documents it for "top_k_first"."""
    library = ctypes.CDLL(str(_built(folder)))

    def call(name, source, limit, workspace):
        target = torch.empty_like(source)
        batch, vocab = source.shape
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (source, target, workspace)]
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        status = getattr(library, name)(*pointers[:2], batch, limit, vocab, pointers[2], stream)
        if status != 0:
            raise RuntimeError(f"FlashInfer's {name} ended with CUDA error {status}")
        return target

    def mask(logits, k, p):
        logits = logits.contiguous()
        if k is not None:
            logits = call("top_k_mask", logits, k, torch.zeros(1 << 20, dtype=torch.uint8, device=logits.device))
        if p is None:
            return logits > -INF
        size = _workspace_bytes(*logits.shape)
        workspace = torch.empty(size, dtype=torch.uint8, device=logits.device)
        return call("top_p_renorm", logits.softmax(-1), ctypes.c_float(p), workspace) > 0

    return mask


def _workspace_bytes(batch: int, vocab: int) -> int:
    """What FlashInfer's `top_p_renorm_probs` allocates with sums that do not depend on the run."""

    def whole(size):
        return -(-size // 256) * 256

    buffer = max(whole(vocab // 32), 256)
    return sum(whole(size * batch) for size in (384, 8 * 2048, 4 * 2048, 4 * buffer, 4 * buffer))


def _built(folder: Path) -> Path:
    """The library made of FlashInfer's headers and `_flashinfer.cu`; half a minute of nvcc, once."""
    library = folder / "flashinfer.so"
    if library.is_file():
        return library
    compiler = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if not (folder / "flashinfer" / "sampling.cuh").is_file() or compiler is None:
        raise FileNotFoundError(f"there are no FlashInfer headers in {folder.name}, or no nvcc")
    command = [compiler, "-O2", "-std=c++17", "-arch=native", "--shared", "-Xcompiler", "-fPIC", "-I", folder]
    subprocess.run(list(map(str, [*command, "-o", library, WRAPPER])), check=True)
    return library
