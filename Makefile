# Two commands do everything on a machine with Python and g++: `make train` and `make test`.

# torch is installed before the package, so that no second torch is fetched. A wheel for the CPU only is smaller:
#   make train TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"
TORCH ?= torch==2.13.0
PYTHON ?= python3

# The main job: `make train MODEL=gcn DATA=cora.npz EPOCHS=50 ARGS="--compare --plot out.png"`.
MODEL ?= gat
DATA ?= digits
EPOCHS ?= 100
ARGS ?=

# Tests run in two workers, because most of a test is compilation, which uses one core. The workers' threads share the
# cores, so none may spin.
PYTEST_ARGS ?= -n 2

# Tests start some hundred processes that import this package. An environment that forbids Python to keep bytecode, as
# many containers do, has each of them compile all of its modules, for about a second.
export PYTHONDONTWRITEBYTECODE :=

VENV := .venv
BIN := $(VENV)/bin
# The main job installs what it needs ("pyg", "train", and "plot" where ARGS ask for a plot or a report); tests, checks
# and benchmarks install everything. Compiling all modules of PyTorch and SciPy to bytecode takes half of its
# installation, and a training imports only some of them, so Python compiles these when they are imported.
TRAIN_STAMP := $(VENV)/.installed-train
PLOT_STAMP := $(VENV)/.installed-plot
STAMP := $(VENV)/.installed
SITE_STAMP := $(VENV)/.installed-site

# DGL 2.1 needs an older torch, so it has a virtual environment of its own, which only `make bench-peers`,
# `make bench-udf`, `make bench-relational` and `make bench-ops` make. The wheel that most indices have brings CUDA's
# libraries along (5 GB); one for the CPU only is enough:
#   make bench-peers DGL_TORCH="torch==2.2.1+cpu --index-url https://download.pytorch.org/whl/cpu"
# DGL's wheels are for Python 3.8 to 3.12.
DGL_TORCH ?= torch==2.2.1
DGL_PYTHON ?= $(PYTHON)
DGL_VENV := .venv-dgl
DGL_STAMP := $(DGL_VENV)/.installed

# PyG's native libraries, which only the peer "PyG, native" of benchmarks sees: torch-scatter and torch-sparse from their
# source archives, which takes half an hour, and pyg-lib from a folder or archive with its source, if one is given:
#   make pyg-native PYG_LIB=../pyg-lib
PYG_LIB ?=
PYG_NATIVE := .pyg-native

.PHONY: setup setup-site pyg-native bench-papers train test test-baseline test-avx2 test-triton fuzz slow zoo lint format bench bench-first-call bench-compilers bench-forces bench-memory bench-bounds bench-peers bench-udf bench-relational bench-ops bench-gpu site package versions release-check clean

setup: $(STAMP)

setup-site: $(SITE_STAMP)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(TRAIN_STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --no-compile $(TORCH)
	$(BIN)/python -m pip install --no-compile -e ".[pyg,train]"
	touch $@

$(PLOT_STAMP): $(TRAIN_STAMP)
	$(BIN)/python -m pip install --no-compile -e ".[plot]"
	touch $@

$(STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install $(TORCH)
	$(BIN)/python -m pip install -e ".[pyg,train,plot,test]"
	touch $(TRAIN_STAMP) $(PLOT_STAMP) $@

$(SITE_STAMP): $(TRAIN_STAMP)
	$(BIN)/python -m pip install --no-compile -e ".[site]"
	touch $@

# The documents as a site with search, in build/site. It works as files, without a server and without a network.
site: $(SITE_STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

# A wheel and a source archive in dist/, used in bare environments (docs/releasing.md).
package: | $(BIN)/python
	$(BIN)/python -m release.package --torch "$(TORCH)"

# Other versions of Python, PyTorch and PyG, each in a bare environment: make versions ARGS="--only torch=2.15".
versions: $(STAMP)
	$(BIN)/python -m release.versions $(ARGS)
	$(BIN)/python -m docs.made

# All of docs/releasing.md that needs no decision, apart from the whole test suite.
release-check: $(STAMP) site package
	$(BIN)/python -m release.check
	$(BIN)/python -m pytest tests/house/test_packaging.py tests/house/test_public_api.py \
		tests/docs/test_readme.py tests/docs/test_examples.py

# Threads that wait give up their core: where cores are shared, spinning costs more than waking.
train: $(if $(findstring --plot,$(ARGS))$(findstring --report,$(ARGS)),$(PLOT_STAMP),$(TRAIN_STAMP))
	OMP_WAIT_POLICY=PASSIVE $(BIN)/graphweave train --model $(MODEL) --data $(DATA) --epochs $(EPOCHS) $(ARGS)

test: $(STAMP)
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest $(PYTEST_ARGS)

# These targets run the suite as other machines would. Libraries and kernels with vectors of another width add in another
# order, so a tolerance that only just holds here fails there. test-baseline runs code for any x86-64 on one thread,
# test-avx2 code for AVX2 with kernels by clang++. Other Pythons: `make test PYTHON=python3.13 VENV=.venv-3.13`.
BASELINE := ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE ONEDNN_MAX_CPU_ISA=SSE41 GRAPHWEAVE_ARCH=x86-64 \
	OMP_NUM_THREADS=1
AVX2 := ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2 GRAPHWEAVE_ARCH=x86-64-v3 \
	OMP_NUM_THREADS=2 GRAPHWEAVE_CXX=clang++

test-baseline: $(STAMP)
	$(BASELINE) $(BIN)/python -m pytest $(PYTEST_ARGS) --margins

test-avx2: $(STAMP)
	$(AVX2) $(BIN)/python -m pytest $(PYTEST_ARGS) --margins

# Tests of the numerics of the whole compiler with its other target: Triton's interpreter runs kernels on CPU tensors.
NUMERICS := $(addprefix tests/,$(addsuffix .py,codegen/test_triton_kernels codegen/test_triton_products \
	codegen/test_triton_typed codegen/test_triton_pushes codegen/test_typed_regions frontends/dynamo/test_half_precision \
	passes/test_compiled_programs frontends/dynamo/test_convolutions frontends/spellings/test_losses \
	frontends/spellings/test_reducers passes/test_edge_products udf/test_udf_kernels nn/test_nn_layers \
	nn/test_nn_relational nn/test_nn_decoders frontends/dynamo/test_index_errors ops/test_ops \
	ops/test_edge_ops ops/test_own_reducers))
# The same for whole models and for the code around kernels. `make slow` runs it, and what test-triton leaves out because
# the interpreter takes long.
MORE_NUMERICS := $(addprefix tests/,$(addsuffix .py,runtime/test_random udf/test_udf_arguments \
	frontends/dynamo/test_relational_layers_match loops/test_loops_models frontends/dynamo/test_horizontal_models))
INTERPRETED := TRITON_INTERPRET=1 GRAPHWEAVE_TARGET=triton OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest $(PYTEST_ARGS)

test-triton: $(STAMP)
	$(INTERPRETED) $(NUMERICS)

# Compares random programs with eager mode for MINUTES, from program number SEED on. The default SEED is random and
# printed:
#   make fuzz MINUTES=30 SEED=7 ARGS="--door plain --out /tmp/findings"
MINUTES ?= 2
SEED ?=

fuzz: $(STAMP)
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m tests.fuzz --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

# A later -m replaces the one in pyproject.toml.
slow: $(STAMP)
	$(BIN)/python -m pytest -m slow $(PYTEST_ARGS)
	$(INTERPRETED) $(MORE_NUMERICS)
	sed '/^#/d' tests/slow_interpreted.txt | tr '\n' '\0' | xargs -0 env $(INTERPRETED) -m slow

zoo: $(STAMP)
	$(BIN)/python -m tests.pyg.zoo

NATIVE := $(wildcard graphweave/exporting/native/*.cpp graphweave/runtime/native/*.cpp graphweave/runtime/native/*/*.h tests/native/*)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(NATIVE)
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(NATIVE)

bench: $(STAMP)
	$(BIN)/python -m bench.train_step $(ARGS)
	$(BIN)/python -m bench.train_step --models gat gat-8x32 --graphs rmat --systems eager graphweave "least memory" --memory

# Seconds of first calls, cold and with what is on disk: make bench-first-call ARGS="--cases gat-2 --out bench/results".
bench-first-call: $(STAMP)
	$(BIN)/python -m bench.first_call $(ARGS)

# Compilers beside one another: make bench-compilers ARGS="--compilers g++ clang++ --out bench/results".
bench-compilers: $(STAMP)
	$(BIN)/python -m bench.compilers $(ARGS)

# Energies and forces, spherical tensors, and points: all that docs/forces.md and docs/points.md promise to be fast.
bench-forces: $(STAMP)
	$(BIN)/python -m bench.forces --models schnet painn $(ARGS)
	$(BIN)/python -m bench.equivariant --models mace "e3nn mace" --batches molecules --systems eager graphweave $(ARGS)
	$(BIN)/python -m bench.points

bench-memory: $(STAMP)
	$(BIN)/python -m bench.memory_growth $(ARGS)

bench-bounds: $(STAMP)
	$(BIN)/python -m bench.bounds $(ARGS)

bench-peers: $(STAMP) $(DGL_STAMP)
	$(BIN)/python -m bench.train_step --models gat edgeconv monet gcn sage gin gatv2 --graphs rmat points \
		--systems graphweave dgl dgl-thp --repeats 20 $(ARGS)
	$(BIN)/python -m bench.ops --graphs rmat --operators gcn weighted dot --lengths 64

# Compares user-defined functions with DGL, and building a graph: `make bench-udf ARGS="--graphs ppi arxiv --out FILE"`.
bench-udf: $(STAMP) $(DGL_STAMP)
	$(BIN)/python -m bench.udf $(ARGS)

# Compares RGCN, RGAT and HGT with PyG and DGL: `make bench-relational ARGS="--graphs aifb wn18rr --out FILE"`.
bench-relational: $(STAMP) $(DGL_STAMP)
	$(BIN)/python -m bench.relational $(ARGS)

# Compares operators on edges with PyG, DGL and MKL's product: `make bench-ops ARGS="--graphs rmat --threads 1"`.
bench-ops: $(STAMP) $(DGL_STAMP)
	$(BIN)/python -m bench.ops $(ARGS)

pyg-native: $(STAMP)
	VIRTUAL_ENV=$(abspath $(VENV)) PATH="$(abspath $(BIN)):$$PATH" MAX_JOBS=1 FORCE_CUDA=0 $(BIN)/python -m pip install --no-compile --no-deps --no-build-isolation --upgrade \
		--target $(PYG_NATIVE) --no-binary torch-scatter,torch-sparse torch-scatter torch-sparse $(PYG_LIB)

# Measures what docs/papers.md lacks, for an hour: `make bench-papers ARGS="--minutes 300"`, as often as it takes.
bench-papers: $(STAMP) $(DGL_STAMP)
	$(BIN)/python -m bench.papers fill $(ARGS)
	$(BIN)/python -m bench.papers page

# Runs on a machine with one NVIDIA GPU, in under 8 minutes: `make bench-gpu ARGS="--dtype bfloat16 --out FILE"`. TORCH
# must have CUDA, as the default has. This is a rehearsal without a GPU:
#   make bench-gpu ARGS="--device cpu --small --models gcn --graphs cora"
bench-gpu: $(STAMP)
	$(BIN)/python -m bench.gpu $(ARGS)

$(DGL_STAMP): bench/requirements-dgl.txt
	$(DGL_PYTHON) -m venv $(DGL_VENV)
	$(DGL_VENV)/bin/python -m pip install $(DGL_TORCH)
	$(DGL_VENV)/bin/python -m pip install -r bench/requirements-dgl.txt
	touch $@

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find graphweave bench tests -name __pycache__ -type d -prune -exec rm -rf {} +
