"""Run by `dev.py doctor` inside ./.venv: print as JSON what works there, and why the rest does not."""

import importlib.metadata
import json
import os


def attempt(question):
    """[True, answer] or [False, the reason]."""
    try:
        return [True, question()]
    except Exception as error:  # whatever is broken here is the answer
        return [False, str(error).partition("\n")[0] or type(error).__name__]


def torch():
    import torch

    return {"version": torch.__version__, "cuda": torch.version.cuda, "usable": torch.cuda.is_available()}


def gpu():
    import torch

    name, capability = torch.cuda.get_device_name(0), torch.cuda.get_device_capability(0)
    torch.ones(2, device="cuda").sum().item()
    return f"{name}, compute capability {capability[0]}.{capability[1]}"


def rooms():
    import activations
    import qp_kernels
    import widgets

    return ", ".join(room.__name__ for room in (qp_kernels, activations, widgets))


def backend():
    from qp_kernels import backend

    chosen = backend.resolve("cuda" if torch()["usable"] else "cpu")
    return f"{chosen.name}: {chosen.reason}"


def model():
    from activations import gemma

    if problem := gemma.problem():
        raise RuntimeError(problem)
    return f"{gemma.NAME} in {gemma.folder()}"


def main():
    answers = {name: attempt(lambda name=name: importlib.metadata.version(name)) for name in ("triton", "jupyterlab")}
    answers.update({question.__name__: attempt(question) for question in (torch, gpu, rooms, backend, model)})
    print(json.dumps(answers))


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
