# Thin on purpose: tools/dev.py does the work and runs without make as well (python tools/dev.py lab).
#
#   make lab                         open the start lesson in JupyterLab; does all set-up first, in ./.venv
#   make lab MODEL=none              recorded captures only, no model is fetched
#   make lab MODEL=<id or folder>    another causal language model
#   make lab ARGS="--port 9999"      further arguments go to JupyterLab (for `make test`: to pytest)
#   make test-gpu                    the tests that need a CUDA device; make fuzz-gpu: two million random rows on it
#   make fuzz-gpu ARGS="--what index"  the same of index selection
#   make bench                       times of the kernels on this machine's GPU, beside other libraries
#   make bench ARGS="--what index"   index selection alone; --what qrita: top-k / top-p alone
#   make bench ARGS="qrita_gpu"      the latter with rows of the default model, or another script of benchmarks/
#   make indexers                    distil the default model's indexers again: minutes on a GPU, goes on after a stop
#   make tune                        measure the launch table on this machine's GPU, and keep it for that device
#   make doctor                      what works here, what does not and why
#   make help                        every target
#
# PYTHON=python3.12 chooses the interpreter of ./.venv, TORCH_ARGS="..." what pip is given for torch.

# The first interpreter that runs: a pyenv shim can exist and fail.
RUN := $(shell for p in "$(PYTHON)" python3 python3.11 python3.12 python3.13 python3.14 python; do \
	"$$p" -c "import sys; sys.exit(sys.version_info < (3, 7))" >/dev/null 2>&1 && { echo "$$p"; break; }; done)
DEV = exec "$(or $(RUN),python3)" tools/dev.py

.PHONY: help lab test test-gpu fuzz-gpu sanitize-gpu doctor env model bench tune indexers lint format strip freeze clean
.DEFAULT_GOAL := help

lab:
	@$(DEV) lab $(if $(PYTHON),--python "$(PYTHON)") $(if $(MODEL),--model "$(MODEL)") $(ARGS)

env test test-gpu fuzz-gpu sanitize-gpu indexers:
	@$(DEV) $@ $(if $(PYTHON),--python "$(PYTHON)") $(ARGS)

model:
	@$(DEV) model $(if $(PYTHON),--python "$(PYTHON)") $(if $(MODEL),--model "$(MODEL)")

help doctor bench tune lint format strip freeze clean:
	@$(DEV) $@ $(ARGS)
