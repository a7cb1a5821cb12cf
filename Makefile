# s2s: GNU make, pkg-config, C11. `make` builds bin/; `make setup` installs what packages.txt names.
# Knobs: SANITIZE=1 (ASan + UBSan), SANITIZE=thread (TSan), DEBUG=1, MARCH=native, WERROR=1, V=1, PREFIX, DESTDIR, BUILD.
# CPU_LEVELS="x86-64-v2 x86-64-v3 x86-64-v4" is for programs that go to other machines: the CPU's kernels at each of these levels of instructions, of which a
# program takes the best that its machine has (S2S_CPU_LEVEL names another one), and all else at the lowest.
# CUDA=1 makes bin/libs2s-cuda.so too, with nvcc (NVCC, ARCHS="80 90 100 120"): what `device: cuda` opens.

CC ?= gcc
LEVELS := $(sort $(CPU_LEVELS))
MARCH ?= $(or $(firstword $(LEVELS)),native)
PREFIX ?= /usr/local
V ?= 0
VARIANT := $(if $(filter thread,$(SANITIZE)),tsan,$(if $(SANITIZE),sanitize,$(if $(DEBUG),debug,release)))
BUILD ?= build/$(VARIANT)$(if $(LEVELS),-levels)
BIN := $(if $(filter release,$(VARIANT)$(if $(LEVELS),-levels)),bin,$(BUILD)/bin)
Q := $(if $(filter 1,$(V)),,@)
say = $(if $(filter 1,$(V)),,@printf '  %-6s %s\n' $(1) $(2))

# the MPI to build for, as pkg-config names it: ompi-c or mpich
MPI ?= ompi-c
PKGS := sndfile soxr libarchive libzstd zlib jansson simdjson yaml-0.1 libxxhash libcrypto libpcre2-8 libutf8proc
# targets that need no compiler do not ask pkg-config
ifneq ($(filter-out setup clean,$(or $(MAKECMDGOALS),all)),)
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) $(MPI) 2>/dev/null | sed 's/-I/-isystem /g')
PKG_LIBS := $(shell pkg-config --libs $(PKGS) 2>/dev/null)
MPI_LIBS := $(shell pkg-config --libs $(MPI) 2>/dev/null)
GEMM_LIB := $(if $(wildcard /usr/include/dnnl.h /usr/include/*/dnnl.h),dnnl,openblas)
endif

WARN := -Wall -Wextra -Wshadow -Wvla -Wmissing-prototypes -Wstrict-prototypes -Wno-unused-parameter -Wno-psabi
OPT_release := -O3 -g1
OPT_debug := -Og -g3
OPT_sanitize := -O3 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -DCPU_MAP_BYTES=SIZE_MAX -DPICKLE_WINDOW=4096 -DHEADER_WINDOW=64 -DFIRST_ROOM_BYTES=0x200000
OPT_tsan := -O1 -g -fsanitize=thread
OPT := $(OPT_$(VARIANT))
CFLAGS_ALL := -std=gnu11 -D_GNU_SOURCE -I. $(PKG_CFLAGS) $(WARN) $(if $(WERROR),-Werror) $(OPT) -march=$(MARCH) -fopenmp -pthread \
	-ffp-contract=fast -fno-math-errno -fno-trapping-math $(CFLAGS)
LDFLAGS_ALL := $(OPT) -fopenmp -pthread -Wl,--as-needed $(LDFLAGS)
# MPI is loaded only under a launcher: libraries of fast networks, which it brings, may take 160 ms to load. It calls back into the program.
# The old kind of rpath is the program's, whoever calls dlopen for it (under ASan libasan does).
MPI_SRC := lib/mesh/mpi.c lib/mesh/combine.c
MPI_LIB := $(BIN)/libs2s-mpi.so
# what reads a tokenizer.model, where sentencepiece is installed: C++, so a library of its own that is opened when it is needed
SP_LIB := $(if $(wildcard /usr/include/sentencepiece_processor.h /usr/local/include/sentencepiece_processor.h),$(BIN)/libs2s-sentencepiece.so)
LOADS_MPI := -rdynamic -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/../lib/s2s:$$ORIGIN'
LIBS := $(PKG_LIBS) -lstdc++ -l$(GEMM_LIB) -lm -ldl
# The GPU's kernels: a library of their own, opened when a device is asked for by that name. Code of the newest of these serves newer GPUs of its generation,
# and PTX of the oldest all that come. The same files make another one for the tests, with g++ over an emulation of blocks, barriers and matrix instructions.
# A program of CUDA that PATH has not may be in build/cuda-deps, where `make cuda-deps` puts it.
DEPS_PATH := $(PATH):$(CURDIR)/build/cuda-deps/nvidia/cu13/bin
NVCC ?= $(or $(shell PATH="$(DEPS_PATH)" command -v nvcc),nvcc)
ARCHS ?= 80 90 100 120
CUDA_LIB := $(BIN)/libs2s-cuda.so
CUDA_SRC := $(wildcard kernels/cuda/*.cu)
# files of instructions that Hopper alone has are for it alone
NVCC_CODE = $(if $(filter %sm90,$*),-gencode arch=compute_90a$(,)code=sm_90a,$(foreach a,$(ARCHS),-gencode arch=compute_$(a)$(,)code=sm_$(a)) -gencode arch=compute_80$(,)code=compute_80)
, := ,
NVCC_ALL = -std=c++17 -O3 -I. $(NVCC_CODE) \
	-Xcompiler -fPIC,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-fvisibility=hidden $(if $(WERROR),-Werror all-warnings) $(NVCCFLAGS)
EMU_LIB := $(BUILD)/libs2s-emu.so
EMU_SRC := $(filter-out %/rt_cuda.cu %/blas_lt.cu,$(CUDA_SRC)) $(wildcard kernels/cuda/emu/*.cc)
# what these kernels open in place of NCCL when tests run several ranks over the emulation
NCCL_HOST := $(BUILD)/libnccl-host.so
CXXFLAGS_ALL = -std=c++17 -D_GNU_SOURCE -I. -Wall -Wextra -Wno-unused-parameter -Wno-unknown-pragmas -Wno-psabi $(if $(WERROR),-Werror) $(OPT) -march=$(MARCH) -fPIC -pthread $(CXXFLAGS)

# one file chooses the GEMM: kernels/cpu/gemm_dnnl.c or kernels/cpu/gemm_openblas.c
GEMM_SKIP := kernels/cpu/gemm_$(if $(filter dnnl,$(GEMM_LIB)),openblas,dnnl).c
LIB_SRC := $(filter-out $(GEMM_SKIP) $(MPI_SRC),$(wildcard lib/*/*.c lib/*/*/*.c kernels/*.c kernels/*/*.c))
# what is a library of its own (below) is not in this one
LIB_CXX := $(filter-out lib/text/sentencepiece.cc,$(wildcard lib/*/*.cc))
LIB := $(BUILD)/libs2s.a
PROGRAM_SRC := $(wildcard tools/*/s2s-*.c)
PROGRAMS := $(addprefix $(BIN)/,$(notdir $(basename $(PROGRAM_SRC))))
# files whose numbers a level changes, compiled once a level where there are several
LEVEL_SRC := $(if $(LEVELS),$(filter-out %/table.c %/levels.c %/memory.c %/gemm_dnnl.c %/gemm_openblas.c,$(wildcard kernels/cpu/*.c)))
UNIT_SRC := $(wildcard tests/unit/*/*_test.c)
UNITS := $(UNIT_SRC:%.c=$(BUILD)/%)
FUZZ_SRC := $(wildcard tests/fuzz/fuzz_*.c)
BENCH_SRC := $(wildcard tests/bench/*_bench.c)
obj = $(patsubst %.c,$(BUILD)/%.o,$(1))
LIB_OBJ := $(LIB_CXX:%.cc=$(BUILD)/%.o) $(call obj,$(filter-out $(LEVEL_SRC),$(LIB_SRC))) $(foreach level,$(LEVELS),$(LEVEL_SRC:kernels/cpu/%.c=$(BUILD)/kernels/cpu/$(level)/%.o))
symbol = $(subst -,_,$(level))

.PHONY: all doc-rules setup units fuzzers benches clean FORCE
.SECONDARY:
all: $(PROGRAMS) $(MPI_LIB) $(SP_LIB) $(if $(filter 1,$(CUDA)),$(CUDA_LIB))

define compile
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS_ALL) -MMD -MP -c -o $@ $<
endef
$(BUILD)/%.o: %.c
	$(compile)
# C++ without exceptions and types at run time, behind an interface of C, for a library that has no other
$(BUILD)/lib/%.o: lib/%.cc
	$(call say,CXX,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) $(CXXFLAGS_ALL) $(PKG_CFLAGS) -fno-exceptions -fno-rtti -MMD -MP -c -o $@ $<

# the templates that it holds
$(BUILD)/lib/text/chat.o: $(wildcard lib/text/chat/*.jinja)

define level_rules
$(BUILD)/kernels/cpu/$(1)/%.o: CFLAGS_ALL += -march=$(1) -DCPU_LEVEL='"$(symbol)"'
$(BUILD)/kernels/cpu/$(1)/%.o: kernels/cpu/%.c
	$$(compile)
endef
$(foreach level,$(LEVELS),$(eval $(call level_rules,$(level))))
ifneq ($(LEVELS),)
$(BUILD)/kernels/cpu/levels.o: CFLAGS_ALL += -DCPU_LEVELS='$(foreach level,$(LEVELS),LEVEL($(symbol), "$(level)"))'
endif

# tests are compiled more often than they run long
$(call obj,$(UNIT_SRC) $(FUZZ_SRC)): OPT := $(subst -O3,-O1,$(OPT))
# MPI_STATUSES_IGNORE of MPICH is no array, as its prototypes say it were
$(call obj,$(MPI_SRC)): CFLAGS_ALL += -fPIC -Wno-stringop-overflow
$(MPI_LIB): $(call obj,$(MPI_SRC))
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS_ALL) -shared -o $@ $^ $(MPI_LIBS)

$(BIN)/libs2s-sentencepiece.so: lib/text/sentencepiece.cc lib/text/sentencepiece.h
	$(call say,CXX,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) $(CXXFLAGS_ALL) -fvisibility-inlines-hidden -shared -o $@ $< $(LDFLAGS) -lsentencepiece

$(BUILD)/cuda/%.o: kernels/cuda/%.cu
	$(call say,NVCC,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(NVCC) $(NVCC_ALL) -MMD -MP -MF $(@:.o=.d) -MT $@ -c -o $@ $<
$(CUDA_LIB): $(CUDA_SRC:kernels/cuda/%.cu=$(BUILD)/cuda/%.o)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(NVCC) -shared -cudart static -o $@ $^ -ldl

# programs over the runtime alone, for a GPU and, some, over the emulator
$(BUILD)/tests/gpu/%: tests/gpu/%.cu $(CUDA_SRC:kernels/cuda/%.cu=$(BUILD)/cuda/%.o)
	$(call say,NVCC,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(NVCC) $(NVCC_ALL) -cudart static -o $@ $< $(if $(filter isa_test sm90,$*),$(BUILD)/cuda/rt_cuda.o,$(patsubst %,$(BUILD)/cuda/%.o,rt_cuda attention_plan)) -ldl
$(BUILD)/tests/gpu/%_emu: tests/gpu/%.cu $(BUILD)/emu/emu.o $(BUILD)/emu/rt.o
	$(call say,CXX,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) $(CXXFLAGS_ALL) -o $@ -x c++ $< -x none $(filter %.o,$^)

define compile_emu
	$(call say,CXX,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) $(CXXFLAGS_ALL) -MMD -MP -x c++ -c -o $@ $<
endef
$(BUILD)/emu/%.o: kernels/cuda/%.cu
	$(compile_emu)
$(BUILD)/emu/%.o: kernels/cuda/emu/%.cc
	$(compile_emu)
# what g++ makes of these templates three times as fast runs but a fifth slower
$(BUILD)/emu/attention_%.o $(BUILD)/emu/relattention%.o: OPT := $(subst -O3,-O1,$(OPT))
# fibres change stacks under the sanitizers' eyes, which must not watch the code that does it
$(BUILD)/emu/emu.o: OPT = -O2 -g $(if $(filter sanitize,$(VARIANT)),-DEMU_ASAN) $(if $(filter tsan,$(VARIANT)),-DEMU_TSAN)
$(EMU_LIB): $(patsubst %,$(BUILD)/emu/%.o,$(basename $(notdir $(EMU_SRC))))
	$(call say,LD,$@)
	$(Q)$(CXX) $(OPT) -pthread $(LDFLAGS) -shared -o $@ $^

$(NCCL_HOST): tests/emu/nccl_host.c
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS_ALL) -fPIC -fvisibility=hidden -MMD -MP -MF $(@:.so=.d) -MT $@ -shared -o $@ $<

$(LIB): $(LIB_OBJ)
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $^

# a program is its main file, the other files of its folder, and the library
define program
$(BIN)/$(notdir $(basename $(1))): $(call obj,$(1) $(filter-out tools/%/s2s-%.c,$(filter-out $(wildcard $(dir $(1))s2s-*.c),$(wildcard $(dir $(1))*.c)))) $(LIB)
	$$(call say,LD,$$@)
	$$(Q)mkdir -p $$(@D)
	$$(Q)$$(CC) $$(LDFLAGS_ALL) $$(LOADS_MPI) -o $$@ $$^ $$(LIBS)
endef
$(foreach src,$(PROGRAM_SRC),$(eval $(call program,$(src))))

# s2s-ckpt needs no more of libarchive than tar: where the archive of it is installed it is linked in, as loading the shared library and
# what that brings (libxml2, ICU, libstdc++) took more than half of a start
$(BIN)/s2s-ckpt: LIBS := $(subst -larchive,$(or $(filter /%,$(shell $(CC) -print-file-name=libarchive.a)),-larchive),$(LIBS))

$(BUILD)/tests/unit/%: $(BUILD)/tests/unit/%.o $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) $(LOADS_MPI) -Wl,-rpath,$(CURDIR)/$(BIN):$(CURDIR)/$(BUILD) -o $@ $^ $(LIBS) -lcmocka
$(BUILD)/tests/bench/%: $(BUILD)/tests/bench/%.o $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) $(LOADS_MPI) -Wl,-rpath,$(CURDIR)/$(BIN) -o $@ $^ $(LIBS)
$(BUILD)/tests/gpu/%: $(BUILD)/tests/gpu/%.o $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) $(LOADS_MPI) -Wl,-rpath,$(CURDIR)/$(BIN) -o $@ $^ $(LIBS)
# the plain driver replays a corpus; `make fuzz` builds the same targets with libFuzzer
$(BUILD)/tests/fuzz/fuzz_%: $(BUILD)/tests/fuzz/fuzz_%.o $(BUILD)/tests/fuzz/replay.o $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^ $(LIBS)

units: $(UNITS) $(MPI_LIB) $(SP_LIB) $(EMU_LIB) $(NCCL_HOST) $(BUILD)/tests/gpu/gpu_bench
fuzzers: $(FUZZ_SRC:%.c=$(BUILD)/%)
benches: $(BENCH_SRC:%.c=$(BUILD)/%) $(MPI_LIB)

setup:
	@tests/setup.sh

clean:
	rm -rf build bin/s2s-* bin/libs2s-*.so

# the libraries, for other scripts that link
print-libs:
	@echo $(LIBS)

# ---- what people type ----

.PHONY: visit visit-programs cuda-lint cuda-deps print-libs demo test test-long bench fuzz check-style install uninstall man completions

test: setup
	@$(MAKE) --no-print-directory all units fuzzers man
	@BUILD=$(BUILD) S2S_BIN=$(CURDIR)/$(BIN) tests/run.sh

# everything, under the sanitizers too, fuzzed, and against the peers' own libraries where PYTHON has them; tests/long.sh PART.. runs parts
test-long: setup
	@tests/long.sh

demo: setup
	@$(MAKE) --no-print-directory all
	@demo/run.sh

bench: setup
	@$(MAKE) --no-print-directory all benches
	@BUILD=$(BUILD) S2S_BIN=$(CURDIR)/$(BIN) tests/bench/run.sh

# libFuzzer on every target, FUZZ_RUNS inputs each (needs clang)
fuzz: setup
	@tests/fuzz/run.sh $(FUZZ_RUNS)

check-style:
	@tests/style.sh

# what a machine with a GPU and without this tree's libraries needs for tests/gpu/visit.sh, in build/visit; NCCL=FILE (a libnccl.so.2 of 2.30 or later, such as
# that of the wheel nvidia-nccl-cu13) is carried with an MPI for two ranks on that GPU. The machine code is not compressed apart, as all of it is together.
VISIT_LEVELS := x86-64-v3 x86-64-v4
visit:
	@$(MAKE) --no-print-directory CPU_LEVELS="$(VISIT_LEVELS)" CUDA=1 ARCHS=90 NVCCFLAGS="--no-compress $(NVCCFLAGS)" NCCL="$(NCCL)" visit-programs
visit-programs: $(BIN)/s2s-train $(BIN)/s2s-pack $(MPI_LIB) $(CUDA_LIB) $(BUILD)/tests/gpu/gpu_bench $(BUILD)/tests/gpu/isa_test $(BUILD)/tests/gpu/sm90 $(BUILD)/tests/gpu/isa_test_emu \
	$(patsubst %.cu,$(BUILD)/%,$(wildcard tests/gpu/attention_bench.cu)) $(filter $(BUILD)/tests/unit/kernels/%,$(UNITS))
	@tests/gpu/collect.sh $(BUILD) $(BIN) $(NCCL)

# registers, stack, spills and matrix instructions of every kernel and architecture, against tests/gpu/lint.txt; LINTED="attention_fwd gemm_grouped" takes
# these files alone. What was compiled stays in build/lint.
LINTED ?= $(basename $(notdir $(CUDA_SRC)))
LINT_ARCHS := $(ARCHS) ptx
define lint_rule
build/lint/%.$(1): kernels/cuda/%.cu tests/gpu/lint.py
	$$(call say,LINT,"$$< for $(1)")
	$$(Q)mkdir -p $$(@D)
	$$(Q)PATH="$(DEPS_PATH)" NVCC="$(NVCC)" NVCCFLAGS="$(NVCCFLAGS)" python3 tests/gpu/lint.py compile $$< $(1) $$@
endef
$(foreach arch,$(LINT_ARCHS) 90a,$(eval $(call lint_rule,$(arch))))
LINT_OUT := $(foreach name,$(LINTED),$(patsubst %,build/lint/$(name).%,$(if $(filter %sm90,$(name)),90a,$(LINT_ARCHS))))
cuda-lint: $(LINT_OUT)
	@python3 tests/gpu/lint.py judge $(if $(filter command,$(origin LINTED)),,--all) tests/gpu/lint.txt $(LINT_OUT)
ifneq ($(filter cuda-lint,$(MAKECMDGOALS)),)
-include $(wildcard build/lint/*.d)
endif

# what CUDA's part of the build needs and this machine has not, from PyPI into build/cuda-deps: the readers of machine code, and nvcc where there is none
cuda-deps:
	@tests/gpu/deps.sh build/cuda-deps

MAN := $(patsubst doc/man/%.scd,$(BUILD)/man/%,$(wildcard doc/man/*.scd))
# a page for each rule of s2s-check, out of its table
doc-rules: $(BIN)/s2s-check
	$(Q)mkdir -p doc/rules
	$(Q)$< --list --format markdown -o doc/rules/README.md
	$(Q)$< --list | cut -d' ' -f1 | sort -u | while read -r id; do \
		$< --explain $$id --format markdown -o doc/rules/$$id.md || exit 1; done

man: $(MAN)
$(BUILD)/man/%: doc/man/%.scd
	$(Q)mkdir -p $(@D)
	$(Q)scdoc < $< > $@

# completion of every program in bash, zsh and fish, out of its --help
COMPLETE_bash := bash-completion/completions/%
COMPLETE_zsh := zsh/site-functions/_%
COMPLETE_fish := fish/vendor_completions.d/%.fish
COMPLETIONS := $(foreach sh,bash zsh fish,$(patsubst %,$(COMPLETE_$(sh)),$(notdir $(PROGRAMS))))
completions: $(COMPLETIONS:%=$(BUILD)/share/%)
$(foreach sh,bash zsh fish,$(eval $(BUILD)/share/$(COMPLETE_$(sh)): $(BIN)/% doc/completion.sh ; \
	$$(Q)mkdir -p $$(@D) && doc/completion.sh $(sh) $$< >$$@))

install: all man completions
	install -d $(DESTDIR)$(PREFIX)/bin
	for file in $(COMPLETIONS); do install -D -m 644 $(BUILD)/share/$$file $(DESTDIR)$(PREFIX)/share/$$file || exit 1; done
	install -m 755 bin/s2s $(PROGRAMS) $(DESTDIR)$(PREFIX)/bin
	install -D -m 644 $(MPI_LIB) $(DESTDIR)$(PREFIX)/lib/s2s/$(notdir $(MPI_LIB))
	$(if $(SP_LIB),install -D -m 644 $(SP_LIB) $(DESTDIR)$(PREFIX)/lib/s2s/$(notdir $(SP_LIB)))
	[ ! -e $(CUDA_LIB) ] || install -D -m 644 $(CUDA_LIB) $(DESTDIR)$(PREFIX)/lib/s2s/$(notdir $(CUDA_LIB))
	for page in $(MAN); do install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/man/man$${page##*.} $$page || exit 1; done

uninstall:
	cd $(DESTDIR)$(PREFIX)/bin && rm -f s2s $(notdir $(PROGRAMS))
	rm -rf $(DESTDIR)$(PREFIX)/lib/s2s
	cd $(DESTDIR)$(PREFIX)/share && rm -f $(COMPLETIONS)
	for page in $(notdir $(MAN)); do rm -f $(DESTDIR)$(PREFIX)/share/man/man$${page##*.}/$$page; done

-include $(shell find $(BUILD) -name "*.d" -type f 2>/dev/null)
